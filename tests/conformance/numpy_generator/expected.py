"""Tests of NumPy that fail with `nbrt.Generator`, or that do not apply to it, and why.

A name without parameters, ``Class::test``, stands for the test with all of its parameters.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pytest

from tests.conformance.numpy_generator.adapter import ValuesDifferError

__all__ = ["RULES", "Rule", "rule_of"]


@dataclass(frozen=True)
class Rule:
    """Tests that share a reason.

    Attributes
    ----------
    title : str
        The reason in a few words.
    reason : str
        The reason.
    tests : tuple of str
        Their names.
    raises : tuple of type
        What they fail with; nothing: they do not apply, and are not run.
    """

    title: str
    reason: str
    tests: tuple[str, ...]
    raises: tuple[type[BaseException], ...]

    @property
    def names_values(self) -> bool:
        """Whether the tests run on behind comparisons with NumPy's values."""
        return self.raises == (ValuesDifferError,)

    def mark(self) -> pytest.MarkDecorator:
        """Return the mark of the tests."""
        if not self.raises:
            return pytest.mark.skip(reason=f"{self.title}: {self.reason}")
        return pytest.mark.xfail(reason=self.title, raises=self.raises, strict=True)


@functools.cache
def rule_of(name: str) -> Rule | None:
    """Return the rule that lists a test, by its name with or without its parameters."""
    names = {name, name.partition("[")[0]}
    found = [rule for rule in RULES if not names.isdisjoint(rule.tests)]
    assert len(found) <= 1, f"{name} is listed {len(found)} times"
    return found[0] if found else None


def _named(**tests: str) -> tuple[str, ...]:
    """Return names by class: ``Class="first second"`` is ``Class::test_first`` and so on."""
    return tuple(f"{each}::test_{name}" for each in tests for name in tests[each].split())


_VALUES = _named(
    TestSeed="scalar array",
    TestMultivariateHypergeometric="repeatability1 repeatability2 repeatability3",
    TestIntegers="repeatability_32bit_boundary repeatability_32bit_boundary_broadcasting",
    TestRandomDist="""
        integers integers_masked integers_closed random random_float random_float_scalar
        choice_uniform_replace choice_nonuniform_replace choice_uniform_noreplace choice_noninteger
        choice_multidimensional_default_axis choice_array_size_empty_tuple bytes shuffle
        shuffle_custom_axis permutation permutation_custom_axis permuted permuted_with_strides beta
        binomial chisquare dirichlet exponential f gamma geometric gumbel hypergeometric laplace
        logistic lognormal logseries multinomial multivariate_normal negative_binomial
        noncentral_chisquare noncentral_f normal pareto poisson power rayleigh standard_cauchy
        standard_exponential standard_gamma standard_gammma_scalar_float standard_gamma_float
        standard_gammma_float_out standard_normal standard_t triangular uniform vonmises wald
        weibull zipf""",
    TestBroadcast="""
        uniform normal beta exponential standard_gamma gamma f noncentral_f noncentral_f_small_df
        chisquare noncentral_chisquare standard_t vonmises pareto weibull power laplace gumbel
        logistic lognormal rayleigh wald triangular binomial negative_binomial poisson zipf
        geometric logseries multinomial""",
    TestRegression="shuffle_mixed_dimension call_within_randomstate permutation_subclass",
)

RULES = (
    Rule(
        "Compares draws with the values of NumPy's bit generators",
        "nbrt draws other bits from an equal seed. Each test runs to its end: comparisons of "
        "arrays of equal shape may fail, and everything else that it asserts holds.",
        _VALUES,
        (ValuesDifferError,),
    ),
    Rule(
        "Compares draws with the values of NumPy's bit generators, by a hash or a list",
        "The test ends at this assertion.",
        (
            "TestIntegers::test_repeatability",
            "TestRandomDist::test_choice_large_sample",
            "test_ragged_shuffle",
        ),
        (AssertionError,),
    ),
    Rule(
        "Is about NumPy's bit generators",
        "nbrt.Generator has no bit generator of NumPy: it takes a seed, its bit_generator is the "
        "generator itself, and its state a PhiloxState. The tests read the key of an MT19937, hand "
        "it to a RandomState, or pass the class MT19937 for an instance (nbrt raises TypeError).",
        (
            *_named(TestSetState="gaussian_reset gaussian_reset_in_media_res negative_binomial"),
            "TestRandomDist::test_vonmises_large_kappa",
            "TestSeed::test_noninstantized_bitgen",
        ),
        (TypeError,),
    ),
    Rule(
        "Is about NumPy's pickles",
        "The tests take the reduced form of a NumPy generator apart, or load one that an older "
        "NumPy wrote.",
        ("test_generator_ctor_old_style_pickle", "test_legacy_pickle"),
        (ValueError, AssertionError),
    ),
    Rule(
        "Expects a limit of NumPy's algorithms to be refused",
        "hypergeometric and multivariate_hypergeometric of nbrt draw from up to 2**61 elements, "
        "those of NumPy from fewer than 10**9, or as many counts as fit memory.",
        (
            "TestMultivariateHypergeometric::test_argument_validation",
            "TestBroadcast::test_hypergeometric",
        ),
        (AssertionError,),
    ),
    Rule(
        "Expects an array in Fortran order to be refused as out",
        "NumPy refuses it beside an array of shapes; nbrt fills it.",
        ("test_c_contig_req_out",),
        (pytest.fail.Exception,),
    ),
    Rule(
        "Judges a sample by a bound that one seed in ten misses",
        "Of the seeds 0 to 1999, the means and covariances of 1000 vectors are out of these bounds "
        "for 10.2 % with nbrt.Generator and for 9.8 % with numpy.random.default_rng.",
        ("TestRandomDist::test_multivariate_normal_basic_stats[eigh]",),
        (AssertionError,),
    ),
    Rule(
        "Expects results below the smallest normal float",
        "nbrt rounds betas below 2**-1022 to 0, where NumPy goes on to the subnormal 2**-1074: "
        "8.5 % of the betas of (0.0025, 0.0025) are 0, not 7.8 %. Other bits would need a new "
        "stream version.",
        ("TestRegression::test_beta_expected_zero_frequency",),
        (AssertionError,),
    ),
    Rule(
        "Expects a geometric count to saturate at the largest int64",
        "nbrt saturates at 2**63 - 1024, the largest float64 below 2**63. Other bits would need a "
        "new stream version.",
        ("TestRegression::test_geometric_tiny_prob",),
        (AssertionError,),
    ),
    Rule(
        "Uses no Generator",
        "The tests are about MT19937 alone.",
        (
            *_named(TestSeed="seedsequence invalid_scalar invalid_array"),
            "test_jumped",
        ),
        (),
    ),
)
"""What the page lists, in this order."""
