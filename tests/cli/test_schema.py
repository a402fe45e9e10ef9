"""`muster schema`: the schema as JSON."""

from __future__ import annotations

import json

from tests.cli.invocation import Invoke

from muster.spec.json_schema import DIALECT


def test_the_schema_is_printed_as_json(invoke: Invoke) -> None:
    done = invoke("schema")
    schema = json.loads(done.out)
    assert (done.code, done.err, schema["$schema"]) == (0, "", DIALECT)
    assert schema["properties"]["nodes"]["description"].startswith("Number of nodes")
