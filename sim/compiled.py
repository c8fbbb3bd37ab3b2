"""The only module that knows numba: it compiles the kernel once, and policies' hooks as function pointers.

Nothing else in the tree is decorated. Compiled code passes the rig and the view by address (``Ref``): by
value they are hundreds of words, which cost minutes to compile and most of the time to run. Nothing is
allocated inside, so reference counts are off. Code is cached on disk under a digest of the sources it was
made from, because numba's own cache does not see an edit in another file.
"""

import re
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import NumbaError
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_jitable,
    register_model,
)

from schedulers.errors import PolicyError
from schedulers.policy import Scheduler
from schedulers.view import Tiers, allocate
from sim import hooks as shapes
from sim.cluster import run_cluster
from sim.door import DOORS, knock_fill, knock_first, knock_tell
from sim.fabric import Terms, Wiring, weave
from sim.kernel import run
from sim.origin import reachable, seal
from sim.rig import Cache, Hooks, Plant, Rig, Rules
from sim.storage import FLAT
from sim.store import cache_root, kernel_digest

kernel_digest()  # of the sources as this process has imported them

_i8, _f8, _ids, _out = types.int64, types.float64, types.int64[::1], types.float64[::1]


def cache_in(made_of: str) -> None:
    """Send the next compilation to the cache folder of the kernel's sources and of what else it is made of."""
    numba.config.CACHE_DIR = str(cache_root() / f"{kernel_digest()}{made_of}")


class Ref(types.Type):  # type: ignore[misc]
    """A pointer to a NamedTuple in memory: one word to pass on, where the tuple itself is hundreds."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"Ref({target.instance_class.__module__}.{target.instance_class.__name__})")


@register_model(Ref)
class RefModel(models.PrimitiveModel):  # type: ignore[misc]
    """A Ref is a plain address."""

    def __init__(self, manager: Any, kind: Ref) -> None:
        super().__init__(manager, kind, ir.IntType(8).as_pointer())


@infer_getattr
class RefAttribute(AttributeTemplate):  # type: ignore[misc]
    """A field of a Ref: another Ref if it is a NamedTuple, else the field itself."""

    key = Ref

    def generic_resolve(self, kind: Ref, field: str) -> Any:
        """Return the numba type of a field; None if there is no such field."""
        if field not in kind.target.fields:
            return None
        found = kind.target.types[kind.target.fields.index(field)]
        return Ref(found) if isinstance(found, types.BaseNamedTuple) else found


@lower_getattr_generic(Ref)  # type: ignore[untyped-decorator]
def _load_field(context: Any, builder: Any, kind: Ref, value: Any, field: str) -> Any:
    place = kind.target.fields.index(field)
    whole = builder.bitcast(value, context.get_value_type(kind.target).as_pointer())
    here = cgutils.gep_inbounds(builder, whole, 0, place)
    if isinstance(kind.target.types[place], types.BaseNamedTuple):
        return builder.bitcast(here, ir.IntType(8).as_pointer())
    return builder.load(here)


VIEWS = Rig._fields.index("plant")
"""A rig begins with so many views."""

PLANT, CACHE, FABRIC, RULES, TERMS = range(VIEWS, VIEWS + 5)
"""Places of its other parts."""

_jitable: set[Callable[..., Any]] = set()


def allow(function: Callable[..., Any]) -> None:
    """Let compiled code call a plain function, and whatever that calls."""
    for found in reachable(function):
        if found not in _jitable:
            _jitable.add(found)
            register_jitable(found)


@cache
def kinds() -> dict[str, Any]:
    """Numba types: a reference to the view, the three hook shapes, and the parts of the rig."""
    tiers = Tiers(*(np.zeros(1) for _ in Tiers._fields))
    view = numba.typeof(allocate(1, 1, tiers, np.ones(1), (1, 1, 1)))
    batch = types.FunctionType(types.void(Ref(view), _ids, _i8, _f8, _out))
    search = types.FunctionType(_i8(Ref(view), _i8, _ids, _i8, _f8))
    notice = types.FunctionType(types.void(Ref(view), _ids, _i8, _i8, _f8))
    slots = [{"batch": batch, "search": search, "notice": notice}[shape_of(name)] for name in Hooks._fields]
    floats = {
        "dispatched_s",
        "started_s",
        "finished_s",
        "longest_gap_s",
        "order_key",
        "serve_key",
        "evict_key",
    }
    floats |= {"keys", "clock_s", "wake_s"}
    squares = {"flight", "tally"}
    private = [
        types.float64[:, ::1] if name in squares else _out if name in floats else _ids
        for name in Plant._fields
    ]
    rules = [_f8 if name in ("late_key", "watermark") else _i8 for name in Rules._fields]
    terms = [_f8 if Terms.__annotations__[name] is float else _i8 for name in Terms._fields]
    cache = [_ids if name in FLAT else types.int64[:, ::1] for name in Cache._fields]
    parts = [
        types.NamedTuple(private, Plant), types.NamedTuple(cache, Cache), numba.typeof(weave(1, 1, 1, Wiring())),
        types.NamedTuple(rules, Rules), types.NamedTuple(terms, Terms),
    ]  # fmt: skip
    rig = types.NamedTuple([*[view] * VIEWS, *parts, types.NamedTuple(slots, Hooks)], Rig)
    return {
        "batch": batch, "search": search, "notice": notice, "view": view, "parts": parts, "slots": slots, "rig": rig,
    }  # fmt: skip


@intrinsic  # type: ignore[untyped-decorator]
def _rig_at(typing: Any, address: Any) -> Any:
    """Read an address as a reference to a rig."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return Ref(kinds()["rig"])(address), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _store_part(typing: Any, address: Any, place: Any, value: Any) -> Any:
    """Store one of the rig's first parts; ``place`` is a literal."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = builder.inttoptr(arguments[0], context.get_value_type(kinds()["rig"]).as_pointer())
        builder.store(arguments[2], cgutils.gep_inbounds(builder, whole, 0, place.literal_value))
        return context.get_dummy_value()

    return types.void(address, place, value), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store_hook(typing: Any, address: Any, place: Any, hook: Any) -> Any:
    """Store one function pointer; all are of one size, so the hooks are an array in memory."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = builder.inttoptr(arguments[0], context.get_value_type(kinds()["rig"]).as_pointer())
        hooks = cgutils.gep_inbounds(builder, whole, 0, len(Rig._fields) - 1)
        first = builder.bitcast(hooks, arguments[2].type.as_pointer())
        builder.store(arguments[2], builder.gep(first, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(address, place, hook), generate


@intrinsic  # type: ignore[untyped-decorator]
def _store_view(typing: Any, address: Any, place: Any, view: Any) -> Any:
    """Store one of the views, with which a rig begins."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.inttoptr(arguments[0], arguments[2].type.as_pointer())
        builder.store(arguments[2], builder.gep(first, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(address, place, view), generate


def _pack_view(address, place, view):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    _store_view(address, place, view)


def _pack(address, plant, cache, fabric, rules, terms):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    _store_part(address, PLANT, plant)
    _store_part(address, CACHE, cache)
    _store_part(address, FABRIC, fabric)
    _store_part(address, RULES, rules)
    _store_part(address, TERMS, terms)


def _pack_hook(address, place, hook):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    _store_hook(address, place, hook)


def _enter(address):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    run(_rig_at(address))


def _enter_cluster(address):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    run_cluster(_rig_at(address))


@cache
def _packers() -> tuple[Any, Any, dict[str, Any]]:
    """The compiled functions that lay a rig out in memory: made once, cached on disk."""
    cache_in("")
    kept = kinds()
    view = numba.njit(types.void(_i8, _i8, kept["view"]), cache=True)(_pack_view)
    pack = numba.njit(types.void(_i8, *kept["parts"]), cache=True)(_pack)
    shapes_kept = ("batch", "search", "notice")
    hook = {
        shape: numba.njit(types.void(_i8, _i8, kept[shape]), cache=True)(_pack_hook) for shape in shapes_kept
    }
    return view, pack, hook


@cache
def _entry(clustered: bool) -> Any:
    """The compiled event loop, of one engine's simple life or of a cluster: made once, cached on disk."""
    allow(run_cluster if clustered else run)
    cache_in("")
    return numba.njit(types.void(_i8), cache=True, _nrt=False)(_enter_cluster if clustered else _enter)


@cache
def view_words() -> int:
    """Size of a view in memory, in words of eight bytes."""
    context = numba.core.registry.cpu_target.target_context
    return int(context.get_abi_sizeof(context.get_value_type(kinds()["view"]))) // 8


def kernel(clustered: bool = False) -> Callable[[Rig], None]:
    """The compiled event loop over a rig whose hooks are compiled."""
    pack_view, pack, _ = _packers()
    enter = _entry(clustered)
    words = view_words()

    def play(rig: Rig) -> None:
        memory = _with_hooks(rig.hooks).copy()
        for place in range(VIEWS):
            same = next(other for other in range(place + 1) if rig[other] is rig[place])
            if same < place:  # a copy of a view in memory costs less than packing it
                memory[place * words : (place + 1) * words] = memory[same * words : (same + 1) * words]
            else:
                pack_view(memory.ctypes.data, place, rig[place])
        pack(memory.ctypes.data, rig.plant, rig.cache, rig.fabric, rig.rules, rig.terms)
        enter(memory.ctypes.data)

    return play


@lru_cache(maxsize=256)
def _with_hooks(hooks: Hooks) -> Any:
    """Memory for a rig in which these hooks are packed already; each run of them fills in a copy.

    Packing a dozen hooks takes numba longer than a short window takes to run.
    """
    memory = np.zeros(1 << 13, np.int64)  # room for the rig's pointers and numbers, several times over
    pack_hook = _packers()[2]
    for place, (slot, hook) in enumerate(zip(Hooks._fields, hooks, strict=True)):
        pack_hook[shape_of(slot)](memory.ctypes.data, place, hook)
    return memory


def kernel_cached() -> bool:
    """True if the kernel has been compiled on this machine from these very sources."""
    folder = cache_root() / kernel_digest()
    return any(folder.rglob("*_enter*.nbc"))


def shape_of(slot: str) -> str:
    """Return which of the three hook shapes a place in ``Hooks`` has."""
    return "batch" if slot in shapes.BATCHES else "search" if slot in shapes.SEARCHES else "notice"


def named(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    """Give a wrapper a name of its own: machine code is linked by name, equal names pass for equal code."""
    function.__name__ = function.__qualname__ = label
    return function


def at_top(function: Callable[..., Any]) -> bool:
    """True if a function is its module's own, so that its name says which it is."""
    module = sys.modules.get(function.__module__)
    return getattr(module, function.__qualname__, None) is function


@cache
def compile_hook(slot: str, hook: Callable[..., Any] | None) -> Any:
    """Compile one hook (or its absence) for its place in ``Hooks``; raises PolicyError if numba can't."""
    shape = shape_of(slot)
    signature = kinds()[shape].signature
    if hook is None:
        cache_in("")
        return numba.njit(signature, cache=True)(getattr(shapes, f"absent_{shape}"))
    allow(hook)
    known = reachable(hook)
    made_of = seal(known)
    cache_in(f"-{made_of}")
    label = re.sub(r"\W", "_", f"{slot}_{hook.__module__}_{hook.__qualname__}_{made_of}")
    wrapper = named(getattr(shapes, shape)(hook), label)
    try:
        return numba.njit(signature, cache=all(map(at_top, known)), _nrt=False)(wrapper)
    except NumbaError as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise PolicyError(
            f"numba can't compile the hook {hook.__name__} ({slot}): {said[-1] if said else error}",
            where=f"{hook.__code__.co_filename}:{hook.__code__.co_firstlineno}",
            fix="keep to the dialect of schedulers/README.md, or declare python=True (slower, same results)",
        ) from error


@cache
def slow_door(slot: str) -> Any:
    """Return a compiled function of the slot's shape that calls back into Python, at microseconds a call."""

    def fill(view, ids, count, now_s, out):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        here, there = ids.ctypes.data, out.ctypes.data
        with numba.objmode():
            knock_fill(slot, here, count, now_s, there)

    def first(view, waiting, ids, count, now_s):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        here = ids.ctypes.data
        with numba.objmode(place="int64"):
            place = knock_first(slot, waiting, here, count, now_s)
        return place  # noqa: RET504 - numba brings values out of objmode by name

    def tell(view, ids, count, event, now_s):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        here = ids.ctypes.data
        with numba.objmode():
            knock_tell(slot, here, count, event, now_s)

    shape = shape_of(slot)
    door = {"batch": fill, "search": first, "notice": tell}[shape]
    return numba.njit(kinds()[shape].signature)(door)


def hooks_for(scheduler: Scheduler, rig: Rig) -> Hooks:
    """Compiled hooks for a rig whose hooks are plain Python; those declared ``python`` use the door."""
    made: dict[str, Any] = {}
    for slot, hook in shapes.declared(scheduler).items():
        if hook is not None and shapes.slow(scheduler, slot):
            DOORS[slot] = _bind(getattr(rig.hooks, slot), getattr(rig, SEES.get(slot, "known")))
            made[slot] = slow_door(slot)
        else:
            made[slot] = compile_hook(slot, hook)
    return Hooks(**made)


SEES = {
    "dispatch": "board", "cluster_admit": "gate", "cluster_order": "line", "migrate": "mover", "pick": "mover",
    "scale": "scaler", "cluster_observe": "watcher",
}  # fmt: skip
"""The view that each hook of a cluster policy sees."""


def _bind(plain: Callable[..., Any], view: Any) -> Callable[..., Any]:
    return lambda *arguments: plain(view, *arguments)


def warm(scheduler: Scheduler) -> None:
    """Compile, or load from the cache, all that a run of these policies needs."""
    _packers()
    _entry(False)
    for slot, hook in shapes.declared(scheduler).items():
        if not (hook is not None and shapes.slow(scheduler, slot)):
            compile_hook(slot, hook)
