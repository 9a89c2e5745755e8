"""Random numbers from Philox4x32-10: a value depends on (seed, offset, element) alone."""

from __future__ import annotations

from nbrt.backends.draw import Region, Runs
from nbrt.random import audit
from nbrt.random.defaults import (
    default_generator,
    fork_rng,
    get_offset,
    get_rng_state,
    get_state,
    initial_seed,
    isolated_default_generators,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_offset,
    set_rng_state,
    set_state,
)
from nbrt.random.functions import (
    bernoulli,
    dropout,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
)
from nbrt.random.generator import Generator
from nbrt.random.inplace import (
    bernoulli_,
    cauchy_,
    exponential_,
    geometric_,
    log_normal_,
    normal_,
    random_,
    trunc_normal_,
    uniform_,
)
from nbrt.random.layouts import Layout
from nbrt.random.state import PhiloxState

__all__ = [
    "Generator",
    "Layout",
    "PhiloxState",
    "Region",
    "Runs",
    "audit",
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "default_generator",
    "dropout",
    "exponential_",
    "fork_rng",
    "geometric_",
    "get_offset",
    "get_rng_state",
    "get_state",
    "initial_seed",
    "isolated_default_generators",
    "log_normal_",
    "manual_seed",
    "manual_seed_all",
    "multinomial",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_",
    "randperm",
    "seed",
    "seed_all",
    "set_offset",
    "set_rng_state",
    "set_state",
    "trunc_normal_",
    "uniform_",
]
