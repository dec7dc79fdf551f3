"""Hand-made configurations and results."""

from collections.abc import Iterable

from memviz.runner.fit.cost import Cost, Keep
from memviz.runner.fit.predictions import Prediction
from memviz.runner.fit.search import Trial
from memviz.runner.fit.space import Candidate
from memviz.runner.request import Request


def way(seconds: float, peak: int, *names: str, fits: bool = True, keeps: Keep = "outputs") -> Trial:
    request = Request("feed_forward", optimizations=tuple((name, {}) for name in names))
    prediction = Prediction(peak_reserved_bytes=peak, fits=fits, reserved_on_card_bytes=peak)
    return Trial(Candidate(request, keeps), prediction, Cost(0, 0, 0, seconds, seconds))


def hypervolume(points: Iterable[tuple[float, float]], worst: tuple[float, float]) -> float:
    """The area that is dominated by points of (cost, peak), up to the worst of both."""
    area, lowest = 0.0, worst[1]
    for cost, peak in sorted(points):
        if cost < worst[0] and peak < lowest:
            area += (worst[0] - cost) * (lowest - peak)
            lowest = peak
    return area
