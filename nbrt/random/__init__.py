"""Random numbers from Philox4x32-10: a value depends on (seed, offset, element) alone.

Every public name loads its module on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from nbrt.index_sets import Region as Region
    from nbrt.index_sets import Runs as Runs
    from nbrt.random import audit as audit
    from nbrt.random.defaults import default_generator as default_generator
    from nbrt.random.defaults import fork_rng as fork_rng
    from nbrt.random.defaults import get_offset as get_offset
    from nbrt.random.defaults import get_rng_state as get_rng_state
    from nbrt.random.defaults import get_state as get_state
    from nbrt.random.defaults import initial_seed as initial_seed
    from nbrt.random.defaults import isolated_default_generators as isolated_default_generators
    from nbrt.random.defaults import manual_seed as manual_seed
    from nbrt.random.defaults import manual_seed_all as manual_seed_all
    from nbrt.random.defaults import seed as seed
    from nbrt.random.defaults import seed_all as seed_all
    from nbrt.random.defaults import set_offset as set_offset
    from nbrt.random.defaults import set_rng_state as set_rng_state
    from nbrt.random.defaults import set_state as set_state
    from nbrt.random.functions import bernoulli as bernoulli
    from nbrt.random.functions import bernoulli_ as bernoulli_
    from nbrt.random.functions import cauchy_ as cauchy_
    from nbrt.random.functions import dropout as dropout
    from nbrt.random.functions import exponential_ as exponential_
    from nbrt.random.functions import geometric_ as geometric_
    from nbrt.random.functions import log_normal_ as log_normal_
    from nbrt.random.functions import multinomial as multinomial
    from nbrt.random.functions import normal as normal
    from nbrt.random.functions import normal_ as normal_
    from nbrt.random.functions import rand as rand
    from nbrt.random.functions import rand_like as rand_like
    from nbrt.random.functions import randint as randint
    from nbrt.random.functions import randint_like as randint_like
    from nbrt.random.functions import randn as randn
    from nbrt.random.functions import randn_like as randn_like
    from nbrt.random.functions import random_ as random_
    from nbrt.random.functions import randperm as randperm
    from nbrt.random.functions import trunc_normal_ as trunc_normal_
    from nbrt.random.functions import uniform_ as uniform_
    from nbrt.random.generator import Generator as Generator
    from nbrt.random.layouts import Layout as Layout
    from nbrt.random.state import PhiloxState as PhiloxState
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
