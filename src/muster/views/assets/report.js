// The report: the model lies in the page itself.
"use strict";
Muster.report(JSON.parse(document.getElementById("model").textContent), document.getElementById("run"));
