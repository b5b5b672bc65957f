"""Arithmetic for the `calculator` tool: exact, bounded, and nothing but arithmetic."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

__all__ = ["CalculationError", "calculate"]

MAX_LENGTH = 200
MAX_DIGITS = 200

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class CalculationError(Exception):
    """The expression cannot be evaluated; the text says why, for the model to read."""


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression exactly: + - * / ** % and brackets.

    Returns:
        An integer, or a decimal number rounded to twelve significant digits.

    Raises:
        CalculationError: Not arithmetic, too large, or a division by zero.
    """
    text = expression.strip().replace("×", "*").replace("÷", "/").replace("^", "**")
    text = text.replace(",", "").rstrip("=? ")
    if not text or len(text) > MAX_LENGTH:
        raise CalculationError(f"expression must have 1 to {MAX_LENGTH} characters")
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise CalculationError("not an arithmetic expression") from None
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.12g}"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if isinstance(node.op, ast.Mod):
            return _bounded(left % right)
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise CalculationError("only numbers, + - * / ** % and brackets are allowed")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 1000:
        raise CalculationError("exponent must be a whole number up to 1000")
    digits = max(len(str(abs(base.numerator))), len(str(base.denominator)))
    if digits * abs(int(exponent)) > MAX_DIGITS * 4:
        raise CalculationError(f"result has more than {MAX_DIGITS} digits")
    return _bounded(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    limit = 10**MAX_DIGITS
    if abs(value.numerator) > limit or value.denominator > limit:
        raise CalculationError(f"result has more than {MAX_DIGITS} digits")
    return value
