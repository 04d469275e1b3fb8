"""The table of `scripts/rules-off` fits the source: marks, ways to switch rules off, and tests are there."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"


def load() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("rules_off", str(ROOT / "scripts" / "rules-off"))
    spec = importlib.util.spec_from_loader("rules_off", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


rules_off = load()


def sources() -> list[str]:
    return [file.read_text() for file in SOURCE.rglob("*.py")]


def test_every_mark_in_the_source_is_in_the_table_and_the_other_way_round() -> None:
    marks = re.compile(r"^\s*# rule: (\S+)$", re.MULTILINE)
    in_source = [mark for text in sources() for mark in marks.findall(text)]
    in_table = {mark for rule in rules_off.RULES for mark, _ in rule.offs}
    assert len(in_source) == len(set(in_source)), "a mark is there once"
    assert set(in_source) == in_table


def test_every_rule_can_be_switched_off() -> None:
    mark_in = re.compile(r"^\s*# rule: (\S+)$", re.MULTILINE)
    texts = {mark: text for text in sources() for mark in mark_in.findall(text)}
    for rule in rules_off.RULES:
        for mark, how in rule.offs:
            assert not rules_off.unknown_names(SOURCE, how), f"{mark}: {how}"
            without = rules_off.switched_off(texts[mark], mark, how)
            assert ast.dump(ast.parse(without)) != ast.dump(ast.parse(texts[mark])), mark


def test_every_test_of_the_table_exists() -> None:
    for rule in rules_off.RULES:
        file, *_, name = rules_off.test_path(rule).split("::")
        texts = [(ROOT / file).read_text()]
        if "/conformance/" in file:
            texts.append((SOURCE / "testing" / "stores.py").read_text())
        assert any(f"def {name}(" in text for text in texts), rule.test


def test_a_renamed_name_is_noticed(tmp_path: Path) -> None:
    text = "def f(now):\n    # rule: 1a\n    x = now + 1\n"
    assert (
        rules_off.switched_off(text, "1a", "= now") == "def f(now):\n    # rule: 1a\n    x = now\n"
    )
    (tmp_path / "f.py").write_text(text)
    assert rules_off.unknown_names(tmp_path, "= now") == []
    assert rules_off.unknown_names(tmp_path, "= later") == ["later"]
    with pytest.raises(ValueError, match="0 times"):
        rules_off.switched_off(text, "1b", "pass")
