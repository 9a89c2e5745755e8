"""Parser of LLVM text: the instructions in Numba's code.

The grammar is that of text printed by LLVM: one instruction a line, a switch over several lines,
attributes and metadata at the end. An instruction of an unknown form keeps its text and the names
of its operands, so it can still be copied.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.llvm.model import (
    BINARY,
    CASTS,
    LOCAL,
    BasicBlock,
    Function,
    Instruction,
    Operand,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["function_lines", "member_type", "parse_function", "split_list", "split_type"]

_FLAGS = frozenset(
    (
        *("nuw", "nsw", "exact", "disjoint", "nneg", "samesign", "inbounds", "nusw"),
        *("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"),
        *("volatile", "atomic", "tail", "musttail", "notail", "weak"),
    )
)
_ORDERINGS = frozenset(["unordered", "monotonic", "acquire", "release", "acq_rel", "seq_cst"])
_DEFINE = re.compile(r'^define [^\n]*?@("[^"]*"|[-a-zA-Z$._0-9]+)\(')
_LABEL = re.compile(r'^("[^"]*"|[-a-zA-Z$._0-9]+):')
_RESULT = re.compile(rf"^({LOCAL.pattern}) = ")
_METADATA = re.compile(r"(,\s*!|\s+#\d).*$")
_DEBUG = re.compile(r"!dbg !(\d+)")
_ALIGN = re.compile(r", align (\d+)")
_SIMPLE = re.compile(r"[-@0-9]|(true|false|null|undef|poison|zeroinitializer)\b")
_WORD = re.compile(r"[a-z_][a-z_0-9.]*")
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


def parse_function(module: str, name: str) -> Function:
    """Parse one function of a module.

    `module` is the text that LLVM prints, with names for all values.
    """
    lines = module.splitlines()
    inside_lines = function_lines(lines, name)
    begin, end = inside_lines[0] - 1, inside_lines[-1] + 1
    header = _DEFINE.match(lines[begin])
    assert header is not None
    result = _type_before(lines[begin][: header.start(1) - 1])
    inside, _ = _enclosed(lines[begin], header.end() - 1)
    parameters = [_operand(part) for part in split_list(inside)]
    blocks = dict(_blocks(lines[begin + 1 : end], _debug_lines(lines)))
    outside = "\n".join([*lines[:begin], *lines[end + 1 :]])
    return Function(name, result, parameters, blocks, outside)


def function_lines(lines: list[str], name: str) -> range:
    """Return the numbers of the lines between the head of a function and its closing bracket."""
    begin = next(i for i, line in enumerate(lines) if _defines(line, name))
    return range(begin + 1, next(i for i in range(begin, len(lines)) if lines[i] == "}"))


def _defines(line: str, name: str) -> bool:
    found = _DEFINE.match(line)
    return found is not None and found[1].strip('"') == name


def _debug_lines(lines: list[str]) -> dict[str, int]:
    """Return source lines by the numbers of debug locations."""
    pattern = re.compile(r"^!(\d+) = (?:distinct )?!DILocation\(line: (\d+)")
    found = (pattern.match(line) for line in lines if "!DILocation" in line)
    return {match[1]: int(match[2]) for match in found if match is not None}


def _blocks(lines: list[str], debug: dict[str, int]) -> Iterator[tuple[str, BasicBlock]]:
    block: BasicBlock | None = None
    pending = ""
    for line in lines:
        label = _LABEL.match(line)
        if label is not None:
            if block is not None:
                yield block.label, block
            block = BasicBlock("%" + label[1], [])
            continue
        text = line.strip()
        if not text or text.startswith((";", "#dbg")):
            continue
        pending = f"{pending} {text}".strip()
        if pending.count("[") > pending.count("]"):
            continue  # a switch continues on the next line
        assert block is not None
        block.instructions.append(_instruction(pending, debug))
        pending = ""
    assert block is not None
    yield block.label, block


def _instruction(line: str, debug: dict[str, int]) -> Instruction:
    location = _DEBUG.search(line)
    text = _METADATA.sub("", line) if ("!" in line or "#" in line) else line
    result = _RESULT.match(text)
    name, body = (result[1], text[result.end() :]) if result else ("", text)
    # Shared arrays will be on the stack, so calls that use them must not be tail calls.
    body = body.removeprefix("tail ")
    instruction = _read(name, body)
    instruction.text = body
    if location is not None:
        instruction.line = debug.get(location[1], 0)
    return instruction


def _read(name: str, body: str) -> Instruction:
    flags, opcode, rest = _opening(body)
    if opcode in BINARY:
        first, second = split_list(rest)
        left = _operand(first)
        return Instruction(name, opcode, left.type, [left, Operand(left.type, second)], flags)
    if opcode in ("icmp", "fcmp"):
        predicate, _, rest = rest.partition(" ")
        first, second = split_list(rest)
        left = _operand(first)
        kind = f"{left.type.split(' x ')[0]} x i1>" if left.type.startswith("<") else "i1"
        return Instruction(name, opcode, kind, [left, Operand(left.type, second)], flags, predicate)
    if opcode in CASTS:
        value, _, target = rest.rpartition(" to ")
        return Instruction(name, opcode, target, [_operand(value)], flags)
    reader = _READERS.get(opcode)
    if reader is not None:
        return reader(name, opcode, flags, rest)
    used = [Operand("", found) for found in LOCAL.findall(body)]
    return Instruction(name, opcode, "", used, flags)


def _opening(body: str) -> tuple[str, str, str]:
    """Return the flags, the opcode and the rest."""
    words: list[str] = []
    rest, opcode = body, ""
    while True:
        word, _, after = rest.partition(" ")
        if word in _FLAGS and not (opcode and word == "atomic"):
            words.append(word)
        elif not opcode:
            opcode = word
        else:
            return " ".join(words), opcode, rest
        rest = after
        if not rest:
            return " ".join(words), opcode, ""


def _read_select(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    operands = [_operand(part) for part in split_list(rest)]
    return Instruction(name, opcode, operands[1].type, operands, flags)


def _read_unary(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    operand = _operand(rest)
    return Instruction(name, opcode, operand.type, [operand], flags)


def _read_load(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    rest = rest.removeprefix("atomic ")
    parts = split_list(rest)
    pointer = _operand(parts[1])
    kind = parts[0].removeprefix("volatile ")
    is_plain = "volatile" not in flags and not rest.startswith("volatile") and len(parts) <= 3
    ordered = any(word in _ORDERINGS for word in parts[1].split())
    detail = "" if is_plain and not ordered else "ordered"
    return Instruction(name, opcode, kind, [pointer], flags, detail, _align(rest, 1))


def _read_store(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    parts = split_list(rest)
    operands = [_operand(part) for part in parts[:2]]
    ordered = any(word in _ORDERINGS for word in parts[1].split()) or "volatile" in flags
    detail = "ordered" if ordered else ""
    return Instruction(name, opcode, "void", operands, flags, detail, _align(rest, 1))


def _align(text: str, default: int) -> int:
    align = _ALIGN.search(text)
    return int(align[1]) if align else default


def _read_address(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    parts = split_list(rest)
    operands = [_operand(part) for part in parts[1:]]
    kind = next((o.type for o in operands if o.type.startswith("<")), "ptr")
    return Instruction(name, opcode, kind if kind == "ptr" else "", operands, flags, parts[0])


def _read_phi(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    kind, rest = split_type(rest)
    operands, labels = [], []
    for part in split_list(rest):
        value, label = split_list(part.strip()[1:-1])
        operands.append(Operand(kind, value.strip()))
        labels.append(label.strip())
    return Instruction(name, opcode, kind, operands, flags, labels=labels)


def _read_call(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    at = re.search(r'@("[^"]*"|[-a-zA-Z$._0-9]+)\(', rest)
    if at is None:  # through a pointer
        used = [Operand("", found) for found in LOCAL.findall(rest)]
        return Instruction(name, opcode, "void" if not name else "", used, flags)
    head = rest[: at.start()]
    kind = _type_before(re.sub(r"\([^()]*\)\s*$", "", head) if head.endswith(") ") else head)
    inside, _ = _enclosed(rest, at.end() - 1)
    operands = [_operand(part) for part in split_list(inside)]
    return Instruction(name, opcode, kind, operands, flags, at[1].strip('"'))


def _read_branch(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    parts = split_list(rest)
    labels = [part.split(" ", 1)[1] for part in parts if part.startswith("label ")]
    operands = [] if len(labels) == 1 else [_operand(parts[0])]
    return Instruction(name, opcode, "void", operands, flags, labels=labels)


def _read_switch(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    head, _, tail = rest.partition(" [")
    parts = split_list(head)
    labels = re.findall(rf"label ({LOCAL.pattern})", f"{parts[1]} {tail}")
    return Instruction(name, opcode, "void", [_operand(parts[0])], flags, labels=labels)


def _read_return(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    operands = [] if rest in ("", "void") else [_operand(rest)]
    return Instruction(name, opcode, "void", operands, flags)


def _read_alloca(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    parts = split_list(rest)
    count = [_operand(part) for part in parts[1:] if not part.startswith("align")]
    return Instruction(name, opcode, "ptr", count, flags, parts[0], _align(rest, 16))


def _read_extract(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    aggregate, *indices = split_list(rest)
    operand = _operand(aggregate)
    kind = operand.type
    for index in indices:
        kind = member_type(kind, int(index))
    return Instruction(name, opcode, kind, [operand], flags, ",".join(indices))


def _read_insert(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    aggregate, value, *indices = split_list(rest)
    operands = [_operand(aggregate), _operand(value)]
    return Instruction(name, opcode, operands[0].type, operands, flags, ",".join(indices))


def _read_vector(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    operands = [_operand(part) for part in split_list(rest)]
    kind = operands[0].type
    if opcode != "insertelement":
        lanes, element = kind[1:-1].split(" x ", 1)
        if opcode == "shufflevector":
            lanes = operands[2].type[1:].partition(" ")[0]
        kind = element if opcode == "extractelement" else f"<{lanes} x {element}>"
    return Instruction(name, opcode, kind, operands, flags)


def _read_atomic(name: str, opcode: str, flags: str, rest: str) -> Instruction:
    parts = split_list(rest)
    if opcode == "atomicrmw":
        operation, _, pointer = parts[0].removeprefix("volatile ").partition(" ")
        operands = [_operand(pointer), _operand(parts[1])]
        return Instruction(name, opcode, operands[1].type, operands, flags, operation)
    operands = [_operand(part) for part in parts[:3]]
    kind = f"{{ {operands[1].type}, i1 }}"
    return Instruction(name, opcode, kind, operands, flags)


def _read_other(name: str, opcode: str, flags: str, _rest: str) -> Instruction:
    return Instruction(name, opcode, "void", [], flags)


_READERS = {
    "select": _read_select,
    "fneg": _read_unary,
    "freeze": _read_unary,
    "load": _read_load,
    "store": _read_store,
    "getelementptr": _read_address,
    "phi": _read_phi,
    "call": _read_call,
    "br": _read_branch,
    "switch": _read_switch,
    "ret": _read_return,
    "alloca": _read_alloca,
    "extractvalue": _read_extract,
    "insertvalue": _read_insert,
    "extractelement": _read_vector,
    "insertelement": _read_vector,
    "shufflevector": _read_vector,
    "atomicrmw": _read_atomic,
    "cmpxchg": _read_atomic,
    "unreachable": _read_other,
    "fence": _read_other,
}


# -- the grammar of types and operands ----------------------------------------------------------


def member_type(aggregate: str, index: int) -> str:
    """Return the type of a member of a literal struct or an array."""
    if aggregate.startswith("["):
        return aggregate[1:-1].split(" x ", 1)[1]
    return split_list(aggregate.strip("{ }") if aggregate.count("{") == 1 else aggregate[1:-1])[
        index
    ]


def _operand(text: str) -> Operand:
    """Parse a type, parameter attributes, and a value."""
    kind, rest = split_type(text)
    while rest:
        word = _WORD.match(rest)
        if word is None or rest == word[0] or word[0] in ("splat", "getelementptr", "inttoptr"):
            break
        after = rest[word.end() :]
        if after.startswith("("):
            _, after = _enclosed(after, 0)
        elif word[0] == "align":
            after = after.strip().partition(" ")[2]
        elif not after.startswith(" "):
            break
        rest = after.strip()
    # Words behind the pointer of an access are no part of the value.
    if rest.startswith("%"):
        found = LOCAL.match(rest)
        assert found is not None
        rest = found[0]
    elif rest.startswith('@"'):
        rest = rest[: rest.index('"', 2) + 1]
    elif _SIMPLE.match(rest):
        rest = rest.partition(" ")[0]
    return Operand(kind, rest)


def split_type(text: str) -> tuple[str, str]:
    """Split a text behind the type at its start."""
    text = text.strip()
    if text[0] in _CLOSING:
        inside, rest = _enclosed(text, 0)
        return text[0] + inside + _CLOSING[text[0]], rest.strip()
    kind, _, rest = text.partition(" ")
    return kind, rest.strip()


def _type_before(head: str) -> str:
    """Return the type at the end of a text, such as the result type of a call."""
    head = head.strip()
    if head and head[-1] in "]}>":
        opening = {closing: begin for begin, closing in _CLOSING.items()}[head[-1]]
        depth = 0
        for at in range(len(head) - 1, -1, -1):
            depth += (head[at] == head[-1]) - (head[at] == opening)
            if depth == 0:
                return head[at:]
    return head.rpartition(" ")[2]


def _enclosed(text: str, at: int) -> tuple[str, str]:
    """Return the text between a bracket and its partner, and the text behind."""
    depth, quoted = 0, False
    for position in range(at, len(text)):
        letter = text[position]
        if letter == '"':
            quoted = not quoted
        elif not quoted and letter in "([{<":
            depth += 1
        elif not quoted and letter in ")]}>":
            depth -= 1
            if depth == 0:
                return text[at + 1 : position], text[position + 1 :]
    raise AssertionError(f"no partner for the bracket at {at} of {text!r}")


def split_list(text: str) -> list[str]:
    """Split a text at the commas outside of brackets."""
    parts, depth, begin, quoted = [], 0, 0, False
    for position, letter in enumerate(text):
        if letter == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
    parts.append(text[begin:].strip())
    return [part for part in parts if part]
