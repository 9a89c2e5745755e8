"""Graphs: capture device work once, replay it with other arrays and with further random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from nbrt.graphs.capturing import graph as graph
    from nbrt.graphs.control_flow import cond as cond
    from nbrt.graphs.control_flow import switch as switch
    from nbrt.graphs.control_flow import while_ as while_
    from nbrt.graphs.function import GraphFunction as GraphFunction
    from nbrt.graphs.graph import Graph as Graph
    from nbrt.graphs.hooks import on as on
    from nbrt.graphs.loading import load as load
    from nbrt.graphs.stream_methods import register_stream_method as register_stream_method
    from nbrt.graphs.stream_methods import stream_method as stream_method
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
