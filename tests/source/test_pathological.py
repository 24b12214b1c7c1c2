"""Code that is huge, deep or odd: reading it ends with a result, and costs a bounded amount of work.

Work is counted in calls of the reader's own functions, so that a slow machine changes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

import pytest

import kvlint
from kvlint.contract.call import Call, Target
from kvlint.contract.rule import all_rules, judge
from kvlint.source.reader import Project, SourceError

OP = "npu_fused_infer_attention_score"
CALL = f"torch_npu.{OP}(q, k, v, scale=0.5, sparse_mode=mode, atten_mask=mask)"
HEAD = "import torch\nimport torch_npu\n\n\n"
PACKAGE = os.path.dirname(kvlint.__file__)
# A function of ten thousand lines takes about half of this, a usual one a hundredth.
LIMIT = 2_000_000


class TooMuchWork(Exception):
    """Not an ``Exception`` that the reader would catch: it catches none of this kind."""


def calls(
    source: str, path: str = "module.py", roots: tuple[str, ...] = (), limit: int = LIMIT
) -> list[Call]:
    """Every operator call, judged by every rule, within a number of function calls."""
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            count += 1
            if count > limit:
                sys.setprofile(None)
                raise TooMuchWork(f"more than {limit} calls, last in {frame.f_code.co_name}")

    project = Project(roots, Target())
    rules = all_rules()
    sys.setprofile(profile)
    try:
        scopes = project.read(path, source.encode()).scopes
        found = [call for scope in scopes for call in scope.calls]
        for call in found:
            for rule in rules:
                if rule.applies_to(call.operator):
                    judge(rule, call)
    finally:
        sys.setprofile(None)
    return found


def function(body: str, parameters: str = "q, k, v, x, mode, mask") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}def function({parameters}):\n{lines}"


def only(source: str) -> Call:
    (call,) = calls(source)
    return call


class TestHuge:
    def test_function_of_ten_thousand_lines(self) -> None:
        lines = "\n".join(f"x{i} = x + {i}" for i in range(10_000))
        assert only(function(f"{lines}\nmode, mask = 3, None\n{CALL}")).place is not None

    def test_a_call_before_the_budget_ends_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kvlint.source.reader._Definition.steps", 300)
        lines = "\n".join(f"x{i} = x + {i}" for i in range(300))
        call = only(function(f"mode, mask = 3, None\n{CALL}\n{lines}"))
        assert call.arg("sparse_mode").constant.value == 3

    def test_a_call_behind_what_costs_too_much_is_met(self, monkeypatch: pytest.MonkeyPatch) -> None:
        helper = "def helper(x):\n" + "".join(f"    x = x + {i}\n" for i in range(300)) + "    return x\n"
        body = "".join(f"    if helper(a{i}): q = q + 1\n" for i in range(20))
        names = ", ".join(f"a{i}" for i in range(20))
        source = f"{HEAD}{helper}def f(q, k, v, mode, mask, {names}):\n{body}    {CALL}\n"
        monkeypatch.setattr("kvlint.source.reader.MAX_STEPS", 100)
        (call,) = calls(source)
        assert call.arg("scale").constant.get(None) == 0.5
        assert call.arg("query").dtype.get(None) is None

    def test_a_hundred_functions(self) -> None:
        one = "def f{i}(q, k, v, mode, mask):\n    return " + CALL + "\n\n\n"
        found = calls(HEAD + "".join(one.replace("{i}", str(i)) for i in range(100)))
        assert len(found) == 100

    def test_if_elif_of_five_hundred_branches(self) -> None:
        first = "if x == 0:\n    mode = 0\n"
        rest = "".join(f"elif x == {i}:\n    mode = {i}\n" for i in range(1, 500))
        call = only(function(f"mode = -1\n{first}{rest}mask = None\n{CALL}"))
        assert not call.arg("sparse_mode").constant.known

    def test_match_of_three_hundred_cases(self) -> None:
        cases = "".join(f"    case {i}:\n        mode = {i}\n" for i in range(300))
        call = only(function(f"match x:\n{cases}    case _:\n        mode = 3\nmask = None\n{CALL}"))
        assert not call.arg("sparse_mode").constant.known

    def test_sixty_tests_in_a_row(self) -> None:
        tests = "".join(f"if x.flag{i}:\n    mode = {i}\n" for i in range(60))
        call = only(function(f"mode, mask = 0, None\n{tests}{CALL}"))
        assert not call.arg("sparse_mode").constant.known

    def test_sixty_tests_that_each_set_a_variable_of_their_own(self) -> None:
        tests = "".join(f"if x.flag{i}:\n    y{i} = {i}\nelse:\n    y{i} = -{i}\n" for i in range(60))
        total = " + ".join(f"y{i}" for i in range(60))
        call = only(function(f"{tests}mode, mask = {total}, None\n{CALL}"))
        assert not call.arg("sparse_mode").constant.known

    def test_sixty_tests_that_each_set_an_entry(self) -> None:
        tests = "".join(f"if x.flag{i}:\n    d['scale'] = {i}.0\n" for i in range(60))
        call = only(function(f"d = {{'sparse_mode': 3}}\n{tests}torch_npu.{OP}(q, k, v, **d)"))
        assert call.arg("sparse_mode").constant.value == 3

    def test_sixty_early_returns(self) -> None:
        tests = "".join(f"if x.flag{i}:\n    return {i}\n" for i in range(60))
        assert only(function(f"{tests}mode, mask = 3, None\n{CALL}")).arg("sparse_mode").constant.value == 3

    def test_sixty_results_of_one_helper(self) -> None:
        tests = "".join(f"    if x.flag{i}:\n        return {i}\n" for i in range(60))
        helper = f"def helper(x):\n{tests}    return 3\n\n\n"
        body = f"mode, mask = helper(x) + helper(q), None\n{CALL}"
        source = function(body).replace("def function", f"{helper}def function")
        assert not only(source).arg("sparse_mode").constant.known

    def test_dict_of_thousands_of_entries(self) -> None:
        entries = ", ".join(f"'key{i}': {i}" for i in range(3_000))
        call = only(function(f"d = {{{entries}}}\nmode, mask = d['key3'], None\n{CALL}"))
        assert call.arg("sparse_mode").constant.get(None) in (3, None)

    def test_list_of_thousands_of_numbers(self) -> None:
        numbers = ", ".join(str(i) for i in range(3_000))
        call = only(function(f"torch_npu.{OP}(q, k, v, actual_seq_lengths=[{numbers}])"))
        assert call.arg("q_lens").given.yes

    def test_long_chain_of_additions(self) -> None:
        total = " + ".join(f"x{i}" for i in range(400))
        assert only(function(f"mode, mask = {total}, None\n{CALL}")).arg("mask").is_none.yes

    def test_product_of_sums(self) -> None:
        product = " * ".join(f"(q.shape[0] + x{i})" for i in range(24))
        assert only(function(f"mode, mask = {product}, None\n{CALL}")).arg("mask").is_none.yes

    def test_value_that_doubles_its_identity(self) -> None:
        doubles = "x = x * x + x\n" * 60
        assert only(function(f"{doubles}mode, mask = 3, x\n{CALL}")).arg("sparse_mode").constant.value == 3

    def test_tensor_that_doubles_its_identity(self) -> None:
        doubles = "x = torch.cat([x, x]) + x.transpose(0, 1)\n" * 60
        body = f"x = x.float()\n{doubles}mode, mask = 3, x\n{CALL}"
        assert only(function(body)).arg("sparse_mode").constant.value == 3

    def test_name_of_thousands_of_characters(self) -> None:
        name = "x" * 5_000
        assert (
            only(function(f"{name} = 3\nmode, mask = {name}, None\n{CALL}")).arg("sparse_mode").constant.value
            == 3
        )


class TestDeep:
    @pytest.mark.parametrize(
        ("opening", "closing"),
        [
            ("(", ")"),
            ("-", ""),
            ("not ", ""),
            ("f(", ")"),
            ("[", "]"),
            ("(x + ", ")"),
            ("(x if x else ", ")"),
        ],
    )
    def test_nested_expressions(self, opening: str, closing: str) -> None:
        deep = opening * 80 + "x" + closing * 80
        try:
            found = calls(function(f"y = {deep}\nmode, mask = 3, None\n{CALL}"))
        except SourceError:
            return
        assert [call.arg("sparse_mode").constant.get(None) for call in found] in ([3], [])

    def test_two_hundred_brackets_are_an_answer_or_an_error_of_the_file(self) -> None:
        deep = "(" * 190 + "x" + ")" * 190
        try:
            calls(function(f"y = {deep}\nmode, mask = 3, None\n{CALL}"))
        except SourceError as error:
            assert "pars" in str(error) or "analys" in str(error)

    def test_nested_blocks(self) -> None:
        blocks = "".join("    " * i + f"if x.flag{i}:\n" for i in range(90))
        body = f"{blocks}{'    ' * 90}mode, mask = 3, None\n{'    ' * 90}{CALL}"
        found = calls(function(body))
        assert [call.arg("sparse_mode").constant.value for call in found] == [3]

    def test_nested_loops(self) -> None:
        loops = "".join("    " * i + f"for i{i} in x:\n" for i in range(15))
        assert len(calls(function(f"{loops}{'    ' * 15}{CALL}"))) <= 1

    def test_nested_tries(self) -> None:
        tries = "".join("    " * i + "try:\n" for i in range(15))
        ends = "".join(
            "    " * i + "except ValueError:\n" + "    " * (i + 1) + "mode = 0\n" for i in range(14, -1, -1)
        )
        call = only(function(f"{tries}{'    ' * 15}mode = 3\n{ends}mask = None\n{CALL}"))
        assert call.arg("sparse_mode").constant.equals(3).state in (True, None)

    def test_nested_functions(self) -> None:
        heads = "".join("    " * i + f"def f{i}(q, k, v, mode, mask):\n" for i in range(30))
        assert len(calls(HEAD + heads + "    " * 30 + CALL + "\n")) <= 1

    def test_nested_comprehensions(self) -> None:
        deep = "[" * 20 + "i" + "".join(f" for i in x{i}]" for i in range(20))
        assert only(function(f"y = {deep}\nmode, mask = 3, None\n{CALL}")).arg("mask").is_none.yes

    def test_comprehension_of_many_clauses(self) -> None:
        clauses = " ".join(f"for i{i} in x if i{i}" for i in range(20))
        assert only(function(f"y = [1 {clauses}]\nmode, mask = 3, None\n{CALL}")).arg("mask").is_none.yes

    def test_nested_ternaries(self) -> None:
        deep = "0"
        for i in range(40):
            deep = f"({i} if x.flag{i} else {deep})"
        call = only(function(f"mode, mask = {deep}, None\n{CALL}"))
        assert not call.arg("sparse_mode").constant.known

    def test_nested_dicts(self) -> None:
        deep = "{'a': " * 40 + "3" + "}" * 40
        path = "['a']" * 40
        call = only(function(f"d = {deep}\nmode, mask = d{path}, None\n{CALL}"))
        assert call.arg("sparse_mode").constant.get(None) in (3, None)

    def test_chain_of_helpers(self) -> None:
        chain = "".join(f"def f{i}(x):\n    return f{i + 1}(x)\n\n\n" for i in range(200))
        source = HEAD + chain + "def f200(x):\n    return 3\n\n\n"
        source += f"def function(q, k, v):\n    mode, mask = f0(1), None\n    {CALL}\n"
        assert only(source).arg("mask").is_none.yes

    def test_helpers_that_call_the_next_twice(self) -> None:
        chain = "".join(f"def f{i}(x):\n    return f{i + 1}(x) + f{i + 1}(x + 1)\n\n\n" for i in range(30))
        source = HEAD + chain + "def f30(x):\n    return x\n\n\n"
        source += f"def function(q, k, v):\n    mode, mask = f0(1), None\n    {CALL}\n"
        assert only(source).arg("mask").is_none.yes

    def test_long_chain_of_methods(self) -> None:
        chain = ".view(-1)" * 300
        call = only(function(f"mode, mask = 3, x.int(){chain}\n{CALL}"))
        assert call.arg("mask").dtype.get(None) in ("int32", None)

    def test_long_chain_of_base_classes(self) -> None:
        classes = "".join(f"class C{i}(C{i - 1}):\n    pass\n\n\n" for i in range(1, 120))
        source = HEAD + "class C0:\n    mode = 3\n\n\n" + classes
        source += "class A(C119):\n    def f(self, q, k, v):\n"
        source += f"        mode, mask = self.mode, None\n        {CALL}\n"
        assert not only(source).arg("sparse_mode").constant.known

    def test_function_that_calls_itself_around_the_operator(self) -> None:
        found = calls(function(f"function(q, k, v, x, 3, None)\n{CALL}"))
        assert found

    def test_class_that_is_its_own_base(self) -> None:
        source = f"{HEAD}class A(A):\n    def f(self, q, k, v):\n        mode, mask = self.mode, None\n"
        source += f"        {CALL}\n"
        assert not only(source).arg("sparse_mode").constant.known

    def test_bases_in_a_circle(self) -> None:
        source = f"{HEAD}class A(B):\n    def f(self, q, k, v):\n        mode, mask = self.mode, None\n"
        source += f"        {CALL}\n"
        assert not only(source + "class B(A):\n    pass\n").arg("sparse_mode").constant.known

    def test_attributes_in_a_circle(self) -> None:
        source = (
            f"{HEAD}class A:\n    def __init__(self):\n        self.a = self.b\n        self.b = self.a\n"
            f"    def f(self, q, k, v):\n        mode, mask = self.a, None\n        {CALL}\n"
        )
        assert not only(source).arg("sparse_mode").constant.known

    def test_properties_in_a_circle(self) -> None:
        source = (
            f"{HEAD}class A:\n    @property\n    def a(self):\n        return self.b\n"
            "    @property\n    def b(self):\n        return self.a\n"
            f"    def f(self, q, k, v):\n        mode, mask = self.a, None\n        {CALL}\n"
        )
        assert not only(source).arg("sparse_mode").constant.known

    def test_module_variables_in_a_circle(self) -> None:
        source = f"{HEAD}A = B\nB = A\ndef f(q, k, v):\n    mode, mask = A, None\n    {CALL}\n"
        assert not only(source).arg("sparse_mode").constant.known

    def test_dict_that_holds_itself(self) -> None:
        body = f"d = {{'sparse_mode': 3}}\nd['d'] = d\nd.pop('d')\ntorch_npu.{OP}(q, k, v, **d)"
        assert only(function(body)).arg("sparse_mode").constant.value == 3

    def test_list_that_holds_itself(self) -> None:
        assert only(function(f"x = []\nx.append(x)\nmode, mask = 3, x\n{CALL}")).arg("mask").given.yes

    def test_object_that_holds_itself(self) -> None:
        source = (
            f"{HEAD}class A:\n    def __init__(self):\n        self.me = self\n        self.mode = 3\n"
            f"    def f(self, q, k, v):\n        mode, mask = self.me.me.me.mode, None\n        {CALL}\n"
        )
        assert only(source).arg("sparse_mode").constant.get(None) in (3, None)

    def test_files_that_import_each_other(self, tmp_path: Path) -> None:
        count = 30
        for i in range(count):
            others = "\n".join(f"from m{j} import *\nimport m{j}" for j in range(count) if j != i)
            (tmp_path / f"m{i}.py").write_text(
                f"{others}\ndef f{i}(x):\n    return m{(i + 1) % count}.f{(i + 1) % count}(x)\n"
            )
        source = (
            f"{HEAD}from m0 import *\ndef function(q, k, v, x):\n    mode, mask = f0(x), None\n    {CALL}\n"
        )
        (call,) = calls(source, str(tmp_path / "user.py"))
        assert call.arg("mask").is_none.yes


# CALL stands for the operator call.
ODD = {
    "decorated": """
@wrap(1, *x, **y)
@other
def f(q, k, v, mode=3, mask=None):
    CALL
""",
    "match": """
def f(q, k, v, x):
    mask = None
    match x:
        case {"mode": mode, **rest} if mode > 1:
            pass
        case [mode, *_] | (mode, _):
            pass
        case Point(x=0, y=mode) as whole:
            pass
        case None | True | "text":
            mode = 3
        case _:
            return
    CALL
""",
    "walrus": """
def f(q, k, v, x):
    if (mode := x) and (mask := [y := mode, y ** 2]):
        CALL
""",
    "async": """
async def f(q, k, v, x):
    async with x as mode, q as (a, b):
        async for mask in x:
            await CALL
            yield [i async for i in mask if await i]
""",
    "lambda defaults": """
def f(q, k, v, g=lambda mode=3, *a, mask=None, **b: (mode, mask)):
    mode, mask = g()
    CALL
""",
    "starred": """
def f(q, k, v, *x, mode, **y):
    a, *mask, b = [*x, *y, *(1, 2)]
    {**y, 'a': 1, **{}}
    CALL
""",
    "star in subscripts": """
def f(q, k, v, x):
    mode, mask = x[..., 1:, None], x[()]
    CALL
""",
    "global and nonlocal": """
mode = 3
def f(q, k, v):
    global mode
    mask = None
    def g():
        nonlocal mask
        global mode
        mask, mode = 1, 2
    g()
    CALL
""",
    "class body with loops": """
class A:
    modes = []
    for i in range(3):
        modes.append(i)
    if modes:
        mode = modes[-1]
    with open("x") as handle:
        mask = handle
    try:
        import nothing
    except ImportError:
        nothing = None
    def f(self, q, k, v):
        mode, mask = self.mode, self.mask
        CALL
""",
    "annotations": """
def f(q, k, v, mode: 'int' = 3, mask: list[int] | None = None) -> dict[str, int]:
    CALL
""",
    "chained comparison": """
def f(q, k, v, x):
    mode, mask = 0 < x <= 3 != q is not None in v, None
    CALL
""",
    "chained assignment": """
def f(q, k, v, x):
    (mode, [mask, *_]) = x.y = x[0] = a = (3, [None])
    CALL
""",
    "augmented": """
def f(q, k, v, x):
    mode, mask = 1, None
    mode += 2; mode **= 1; mode @= x; mode >>= 0
    CALL
""",
    "delete": """
def f(q, k, v, mode, mask):
    x = [1]; del x[0], x; del (q.a)
    CALL
    del mode
""",
    "assertions": """
def f(q, k, v, mode, mask):
    assert mode == 3, 'text'
    assert (mask, 'always true')
    CALL
""",
    "loop else and finally": """
def f(q, k, v, x):
    mode = mask = None
    while True:
        try:
            if x: break
            elif q: continue
            else: raise ValueError from None
        except ValueError as group:
            mode = 3
        finally:
            mask = None
    else:
        return
    CALL
""",
    "strings": """
def f(q, k, v, mode):
    mask = f'{mode!r:>{mode}}' 'a' rf'{q}\\d'
    b'a' b'b'
    CALL
""",
    "numbers": """
def f(q, k, v):
    mask, mode = 1j + 0x_ff + 1_000 + 1e400 - 0b1 // 0o7, 10 ** 10 ** 3
    CALL
""",
    "division by zero": """
def f(q, k, v):
    mask, mode = [1 / 0, 1 // 0, 1 % 0, 0 ** -1, 0.0 ** -1], 3
    CALL
""",
    "impossible operations": """
def f(q, k, v):
    mask, mode = [1 + 'a', None < 3, [] * {}, ~'a', -None], 3
    CALL
""",
    "huge repeat": """
def f(q, k, v):
    mask, mode = [0] * 10 ** 12, 'a' * 10 ** 12
    CALL
""",
    "huge range": """
def f(q, k, v):
    mask, mode = list(range(10 ** 15)), 3
    CALL
""",
    "huge numbers": """
def f(q, k, v):
    mask, mode = 1 << 10 ** 9, [2 ** 10 ** 9, 9 ** 9 ** 9, 2 ** -10 ** 9, 0.5 ** 10 ** 9]
    CALL
""",
    "odd names": """
def f(q, k, v, _, __):
    _, mode, *__ = mask = _
    CALL
""",
    "method without self": """
class A:
    def f():
        q = k = v = mode = mask = None
        CALL
""",
    "self in starred arguments": """
class A:
    def f(*args):
        self, q, k, v, mode, mask = args
        CALL
""",
    "conditional class": """
if True:
    class A:
        if True:
            def f(self, q, k, v, mode, mask):
                CALL
""",
    "generator": """
def f(q, k, v, mode):
    mask = (yield mode)
    yield from [CALL]
    return mask
""",
    "wrong number of targets": """
def f(q, k, v):
    mode, mask, extra = 3, None
    CALL
""",
    "wrong indices": """
def f(q, k, v):
    mode, mask = [1][5], {}['a']
    x = 'abc'[9]; y = (1, 2)['a']
    CALL
""",
    "wrong torch arguments": """
def f(q, k, v):
    a = torch.zeros()
    b = torch.zeros(-1, 0).view(3, -1, -1).transpose(7, 9).permute(0, 0)
    c = torch.cat([]).split(0)[3].chunk(0).squeeze(99)[None, 1, 2, 3, ...]
    d = torch.ones(2, 3).triu('a').flatten(5, 1).expand(1).unflatten(0, ()).repeat()
    e = torch.ones(2, 3).view(0, -1).view(()).reshape(-1).select(5, 5).narrow().unbind(9)[4].split([])
    mode, mask = a.shape[9], torch.stack([b, c, d, e], dim=40).sum(1, 2, 3).T.mT.to()
    CALL
""",
}


@pytest.mark.parametrize("form", ODD)
def test_odd_code_has_a_result(form: str) -> None:
    source = HEAD + ODD[form].replace("CALL", CALL).lstrip("\n")
    assert [call.operator.name for call in calls(source, limit=LIMIT // 10)] == [OP]


def test_a_deep_expression_has_the_place_of_its_definition() -> None:
    total = " + ".join(["q"] * 1500)
    source = f"{HEAD}def f(q):\n    x = {total}\n    return torch_npu.npu_rotary_mul(x, [1], x)\n"
    call, *_ = calls(source)
    assert call.place.line == 5
