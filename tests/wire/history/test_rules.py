from __future__ import annotations

import re
from pathlib import Path

import segstore.wire.history
from segstore.wire.history import RULES

_FOLDER = Path(segstore.wire.history.__file__).parent


def test_every_rule_is_judged_and_every_verdict_has_a_rule() -> None:
    sources = "".join(path.read_text("utf-8") for path in _FOLDER.rglob("*.py") if path.name != "rules.py")
    judged = {text for text in re.findall(r'"([a-z]+(?:-[a-z]+)*)"', sources) if text in RULES}
    assert judged == RULES.keys()
    assert {*re.findall(r'(?:Broken|_broken|Open)\(\s*"([a-z-]+)"', sources)} <= RULES.keys()


def test_rules_are_described() -> None:
    for name, rule in RULES.items():
        assert (rule.id, rule.family.strip()) == (name, rule.family)
        assert rule.text[0].islower()
        assert rule.example
        assert rule.source


def test_a_rule_says_where_it_is_judged() -> None:
    of_traces, of_histories = ("traces/*.py", "segments/*.py", "positions.py"), ("logs.py", "streams.py", "groups.py")
    folders = {"traces": of_traces, "histories": of_histories}
    for where, patterns in folders.items():
        sources = "".join(path.read_text("utf-8") for pattern in patterns for path in _FOLDER.glob(pattern))
        named = {text for text in re.findall(r'"([a-z]+(?:-[a-z]+)*)"', sources) if text in RULES}
        assert all(where in RULES[name].judged_in for name in named)
