"""`Graph.profile`: the seconds of each node."""

from __future__ import annotations

import numpy as np
import pytest

import nbrt
from helpers.launches import increment
from nbrt.errors import CaptureError, NotSupportedError


def _captured(device: str):
    with nbrt.device(device):
        x = nbrt.zeros(4)
        with nbrt.graph() as graph:
            increment[1, 4](x)
            increment[1, 4](x)
    return graph, x


def test_a_profile_is_a_replay():
    graph, x = _captured("cpu:0")
    other = np.zeros(4, np.float32)
    seconds = graph.profile()
    assert len(seconds) == len(graph.nodes) == 2
    assert min(seconds) > 0
    assert x.tolist() == [2] * 4
    graph.profile((x, other), stream=nbrt.Stream("cpu:0"))
    assert other.tolist() == [2] * 4
    assert x.tolist() == [2] * 4


def test_a_profile_draws_as_a_replay():
    with nbrt.device("cpu:0"):
        generator = nbrt.Generator()
        with nbrt.graph() as graph:
            drawn = generator.random(8)
        expected = generator.clone()
        graph.profile()
        first = drawn.copy()
        graph.replay()
    np.testing.assert_array_equal(first, expected.random(8))
    np.testing.assert_array_equal(drawn, expected.random(8))


def test_a_profile_in_a_capture_is_refused():
    graph, x = _captured("cpu:0")
    with nbrt.device("cpu:0"), nbrt.graph() as outer:
        increment[1, 4](x)
        with pytest.raises(CaptureError, match="after the capture"):
            graph.profile()
    assert len(outer.nodes) == 1


@pytest.mark.usefixtures("sample_backend")
def test_a_device_that_measures_no_nodes():
    with nbrt.device("sample:0"):
        with nbrt.graph() as graph:
            nbrt.zeros(4)
        with pytest.raises(NotSupportedError, match="measures nodes"):
            graph.profile()
