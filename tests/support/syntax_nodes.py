"""What a reader of code has to parse."""

import ast
from collections import Counter


def syntax_nodes(text):
    """Counts of all `nodes` of a syntax tree, and of its `ternaries` and `walruses`. No docstring counts."""
    counts, todo = Counter(), [ast.parse(text)]
    while todo:
        match todo.pop():
            case ast.Expr(value=ast.Constant(value=str())):
                continue
            case ast.IfExp() as node:
                counts["ternaries"] += 1
            case ast.NamedExpr() as node:
                counts["walruses"] += 1
            case node:
                pass
        counts["nodes"] += 1
        todo.extend(ast.iter_child_nodes(node))
    return counts
