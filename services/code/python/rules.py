# SPDX-License-Identifier: Apache-2.0
"""The rules on the syntax tree (reference A6, A10; contract/code.md §2, §4). They give upstream's refusals to code that asks
for them in plain words; what really holds is the kernel. task.c calls this only when the source contains such a word."""
import ast as _ast

ATTRIBUTES = frozenset("""__base__ __bases__ __mro__ __subclasses__ __globals__ __code__ __closure__ __func__ __self__
    __getattribute__ __getattr__ __setattr__""".split())
CALLS = frozenset("eval exec compile globals locals breakpoint input setattr delattr".split())
STRICT_ATTRIBUTES = ATTRIBUTES | {"__class__", "__dict__"}
STRICT_CALLS = CALLS | {"vars", "dir", "super"}
_compile = compile
_Attribute, _Call, _Name, _Constant, _MatchClass, _AST = _ast.Attribute, _ast.Call, _ast.Name, _ast.Constant, _ast.MatchClass, _ast.AST


def _refuse(node, text):
    error = PermissionError(f"{text} is not allowed in sandbox")
    error.lineno = getattr(node, "lineno", 0)
    raise error


def check(source, strict, filename):
    """The compiled code; PermissionError with `lineno` when a rule forbids something, SyntaxError."""
    attributes, calls = (STRICT_ATTRIBUTES, STRICT_CALLS) if strict else (ATTRIBUTES, CALLS)
    tree = _compile(source, filename, "exec", _ast.PyCF_ONLY_AST, True)
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, _Attribute):
            if node.attr in attributes:
                _refuse(node, f"Access to {node.attr}")
        elif isinstance(node, _MatchClass):
            for name in node.kwd_attrs:
                if name in attributes:
                    _refuse(node, f"Access to {name}")
        elif isinstance(node, _Call) and isinstance(node.func, _Name):
            name = node.func.id
            if name in calls:
                _refuse(node, f"Use of {name}")
            if name == "getattr" and len(node.args) > 1:
                wanted = node.args[1]
                if not isinstance(wanted, _Constant) or not isinstance(wanted.value, str):
                    _refuse(node, "Dynamic getattr")
                if wanted.value in attributes:
                    _refuse(node, f"Access to {wanted.value}")
        below = []
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, _AST):
                below.append(value)
            elif isinstance(value, list):
                below.extend(item for item in value if isinstance(item, _AST))
        todo.extend(reversed(below))
    return _compile(tree, filename, "exec", 0, True)
