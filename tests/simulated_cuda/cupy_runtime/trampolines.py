"""Write the C functions that CuPy's other modules (capsules) and Python (methods) call.

For each function of CuPy's module there are ``capsule_<name>``, of the type that the capsule's name
gives, and ``method_<name>``, of a Python function. Both call ``runtime_<name>``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulated_cuda.cupy_runtime.signatures import SignatureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from simulated_cuda.cupy_runtime.signatures import (
        CapsuleType,
        Implementation,
        PythonSignature,
    )

__all__ = ["KEEP_GIL", "REFUSED", "UNCHANGED", "trampolines"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNCHANGED = _names("""
    runtimeGetVersion _getCUDAMajorVersion _getLocalRuntimeVersion _export_enum make_Extent
    make_PitchedPtr make_Pos
""")
"""Functions that compute without a device: CuPy's own stay."""

REFUSED = _names("""
    createSurfaceObject createTextureObject destroySurfaceObject destroyTextureObject freeArray
    getChannelDesc getTextureObjectResourceDesc getTextureObjectTextureDesc malloc3DArray
    mallocArray memcpy2DFromArray memcpy2DFromArrayAsync memcpy2DToArray memcpy2DToArrayAsync
""")
"""Functions of arrays and textures, which the simulation does not have."""

KEEP_GIL = _names("""
    getDevice getDeviceCount deviceGetAttribute driverGetVersion pointerGetMemoryType
    deviceCanAccessPeer streamGetFlags streamGetPriority
""")
"""Functions that only read, and are called often: the GIL is not released for them."""

_ERROR_VALUES = {"void": "NULL", "PyObject *": "NULL", "int": "-1", "size_t": "(size_t)-1"}
_ERROR_VALUES_BY_NAME = {"streamGetPriority": "0"}
"""The `except` values of CuPy's runtime.pxd, which the capsules do not tell; 0 for other types."""

_STRUCTURES = {"cudaChannelFormatDesc": 20, "cudaResourceDesc": 144, "cudaTextureDesc": 72}
"""Sizes in bytes of the structures that refused functions return, as the runtime API has them."""

_TYPES = frozenset(
    {"int", "unsigned int", "intptr_t", "size_t", "uintmax_t", "float", "PyObject *", "void"}
)


def trampolines(
    capsules: Mapping[str, CapsuleType],
    methods: Mapping[str, PythonSignature],
    defined: Mapping[str, Implementation],
) -> str:
    """Return the C file.

    Raises
    ------
    SignatureError
        If a function of CuPy's is unknown, or has another type than its implementation.
    """
    names = sorted((capsules.keys() | methods.keys()) - UNCHANGED)
    names = [name for name in names if not name.startswith("__pyx_unpickle_")]
    parts = ['#include "runtime.h"\n']
    parts += [f"typedef struct {{ char bytes[{n}]; }} {kind};" for kind, n in _STRUCTURES.items()]
    for name in names:
        capsule, method = capsules.get(name), methods.get(name)
        if name not in REFUSED:
            _check(name, capsule, method, defined.get(name))
        parts.append(_Writer(name, capsule, method, defined.get(name)).text())
    return "\n".join([*parts, *_table(names, capsules, methods)]) + "\n"


def _table(names: Iterable[str], capsules: Iterable[str], methods: Iterable[str]) -> Iterator[str]:
    yield "Trampoline bridge_trampolines[] = {"
    for name in names:
        capsule = f"(void *)capsule_{name}" if name in capsules else "NULL"
        method = f'{{"{name}", method_{name}, METH_VARARGS | METH_KEYWORDS, NULL}}'
        yield f'    {{"{name}", {capsule}, {method if name in methods else "{0}"}}},'
    yield "    {0},\n};"


def _check(
    name: str,
    capsule: CapsuleType | None,
    method: PythonSignature | None,
    defined: Implementation | None,
) -> None:
    if defined is None:
        raise SignatureError(f"{name}: expected no such function, got {capsule or method}")
    if capsule is not None:
        optional = method.defaults if method and capsule.takes_options else {}
        parameters = defined.parameters[: len(defined.parameters) - len(optional)]
        # A function that makes a Python object may be declared with a type to convert to.
        results = {defined.result, "PyObject *"} | (_TYPES if defined.returns_object else set())
        if parameters != capsule.parameters or capsule.result not in results:
            raise SignatureError(
                f"{name}: expected {defined.result} ({', '.join(parameters)}), "
                f"got {capsule.result} ({', '.join(capsule.parameters)})"
            )
        if capsule.takes_options != bool(optional):
            raise SignatureError(f"{name}: expected {len(optional)} optional arguments")
    if method is not None and len(method.parameters) != len(defined.parameters):
        raise SignatureError(
            f"{name}: expected {len(defined.parameters)} arguments, got {method.parameters}"
        )


class _Writer:
    """The C functions of one function of CuPy's module."""

    def __init__(
        self,
        name: str,
        capsule: CapsuleType | None,
        method: PythonSignature | None,
        defined: Implementation | None,
    ) -> None:
        self.name = name
        self.capsule = capsule
        self.method = method
        self.defined = defined
        if defined is not None:
            self.types = defined.parameters
            self.result = defined.result
        else:
            self.types, self.result = _refused_types(capsule, method)
        self.arguments = [f"a{k}" for k in range(len(self.types))]

    def text(self) -> str:
        parts = [*self._prototype(), *self._call()]
        if self.capsule is not None:
            parts += self._capsule(self.capsule)
        if self.method is not None:
            parts += self._method(self.method)
        return "\n".join(parts)

    def _declared(self, types: Iterable[str]) -> list[str]:
        return [f"{kind} {name}" for kind, name in zip(types, self.arguments, strict=False)]

    def _prototype(self) -> Iterator[str]:
        if self.defined is None:
            return
        kinds = list(self.types)
        if not self.defined.returns_object and self.result != "void":
            kinds.append(f"{self.result} *")
        kind = "PyObject *" if self.defined.returns_object else "int "
        yield f"{kind}runtime_{self.name}({', '.join(kinds) or 'void'});"

    def _call(self) -> Iterator[str]:
        """Write ``call_<name>``, which has the GIL and sets an exception."""
        kind = "PyObject *" if self.result == "void" else self.result
        head = (
            f"static {kind} call_{self.name}({', '.join(self._declared(self.types)) or 'void'}) {{"
        )
        given = ", ".join(self.arguments)
        if self.defined is None:
            unused = "".join(f"    (void){name};\n" for name in self.arguments)
            yield f'{head}\n{unused}    bridge_refuse("{self.name}");'
            yield f"    {self._failure(kind)}\n}}"
            return
        if self.defined.returns_object:
            yield f"{head}\n    return runtime_{self.name}({given});\n}}"
            return
        if self.result != "void":
            given = ", ".join([*self.arguments, "&result"])
            head += f"\n    {self.result} result = 0;"
        yield head
        if self.name in KEEP_GIL:
            yield f"    int status = runtime_{self.name}({given});"
        else:
            yield "    PyThreadState *thread = PyEval_SaveThread();"
            yield f"    int status = runtime_{self.name}({given});"
            yield "    PyEval_RestoreThread(thread);"
        yield "    if (status) {\n        bridge_raise(status);"
        yield f"        {self._failure(kind)}\n    }}"
        yield f"    return {'bridge_none()' if self.result == 'void' else 'result'};\n}}"

    def _failure(self, kind: str) -> str:
        if kind in _STRUCTURES:
            return f"return ({kind}){{{{0}}}};"
        value = _ERROR_VALUES_BY_NAME.get(self.name) or _ERROR_VALUES.get(kind, "0")
        return f"return {value};"

    def _capsule(self, capsule: CapsuleType) -> Iterator[str]:
        declared = self._declared(capsule.parameters)
        given = list(self.arguments)
        if capsule.skips_dispatch:
            declared.append("int skip_dispatch")
        if capsule.takes_options:
            assert self.method is not None
            optional = len(self.method.defaults)
            fields = "; ".join(self._declared(self.types)[-optional:])
            yield f"typedef struct {{ int count; {', '.join([fields])}; }} Options_{self.name};"
            yield from self._defaults(self.method)
            declared.append(f"Options_{self.name} *options")
            for k, name in enumerate(self.arguments[-optional:]):
                default = f"default_{self.name}_{name}"
                given[len(given) - optional + k] = (
                    f"options && options->count > {k} ? options->{name} : {default}"
                )
        yield f"static {capsule.result} capsule_{self.name}({', '.join(declared) or 'void'}) {{"
        if capsule.skips_dispatch:
            yield "    (void)skip_dispatch;"
        call = f"call_{self.name}({', '.join(given)})"
        yield from self._converted(capsule.result, call)

    def _defaults(self, method: PythonSignature) -> Iterator[str]:
        for kind, (_, parameter), argument in zip(
            self.types, method.parameters, self.arguments, strict=True
        ):
            if parameter in method.defaults:
                value = method.defaults[parameter]
                yield f"static const {kind} default_{self.name}_{argument} = {value};"

    def _converted(self, wanted: str, call: str) -> Iterator[str]:
        """Convert the result of a call to the type of the capsule."""
        own = "PyObject *" if self.result == "void" else self.result
        if own == wanted:
            yield f"    return {call};\n}}"
        elif wanted == "PyObject *":
            yield f"    {own} result = {call};"
            yield f"    return PyErr_Occurred() ? NULL : bridge_from_{_word(own)}(result);\n}}"
        else:
            yield f"    PyObject *object = {call};\n    {wanted} result = 0;"
            yield f"    if (object && bridge_to_{_word(wanted)}(object, &result)) {{"
            yield "        Py_DecRef(object);\n        return result;\n    }"
            yield "    if (object) Py_DecRef(object);"
            yield f"    {self._failure(wanted)}\n}}"

    def _method(self, method: PythonSignature) -> Iterator[str]:
        head = (
            f"static PyObject *method_{self.name}(PyObject *self, PyObject *args, PyObject *names)"
        )
        yield f"{head} {{\n    (void)self;"
        keywords = "".join(f'"{name}", ' for _, name in method.parameters)
        yield f"    static char *keywords[] = {{{keywords}NULL}};"
        required = len(method.parameters) - len(method.defaults)
        converters = []
        for kind, (_, parameter), name in zip(
            self.types, method.parameters, self.arguments, strict=True
        ):
            yield f"    {kind} {name} = {method.defaults.get(parameter, 0)};"
            converters.append(f", bridge_to_{_word(kind)}, &{name}")
        codes = "O&" * required + ("|" + "O&" * len(method.defaults) if method.defaults else "")
        yield f'    if (!PyArg_ParseTupleAndKeywords(args, names, "{codes}:{self.name}", keywords'
        yield f"                                     {''.join(converters)}))\n        return NULL;"
        yield from self._converted("PyObject *", f"call_{self.name}({', '.join(self.arguments)})")


def _refused_types(
    capsule: CapsuleType | None, method: PythonSignature | None
) -> tuple[tuple[str, ...], str]:
    """Return the types of a refused function: of the capsule, and of optional arguments."""
    assert capsule is not None
    types = list(capsule.parameters)
    if method is not None:
        types += [kind for kind, _ in method.parameters[len(types) :]]
    unknown = {*types, capsule.result} - _TYPES - _STRUCTURES.keys()
    if unknown:
        raise SignatureError(f"{capsule.name}: unknown types {', '.join(sorted(unknown))}")
    return tuple(types), capsule.result


def _word(kind: str) -> str:
    return kind.removesuffix(" *").replace(" ", "_")
