// The report: render the data embedded in the page.
"use strict";
Muster.report(JSON.parse(document.getElementById("model").textContent), document.getElementById("run"));
