"""Metric families of one instance, from samples. Texts in labels are data: escaped, capped. Pure."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from vllmd.model.plain import plain

LABEL_LIMIT = 200

Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]


def gauge(family: str, help_: str, name: str, samples: Iterable[Sample]) -> Metric:
    """Return a gauge of one instance, without what is unknown."""
    return _filled(lambda labels: GaugeMetricFamily(f"vllmd_{family}", help_, labels=labels), name, samples)


def counter(family: str, help_: str, name: str, samples: Iterable[Sample]) -> Metric:
    """Return a counter of one instance; prometheus_client appends _total."""
    return _filled(lambda labels: CounterMetricFamily(f"vllmd_{family}", help_, labels=labels), name, samples)


def _filled(
    made: Callable[[list[str]], GaugeMetricFamily | CounterMetricFamily], name: str, samples: Iterable[Sample]
) -> Metric:
    """Return a family with its samples. All samples of a family have the same labels."""
    known = [(labels, value) for labels, value in samples if value is not None]
    labels = list(known[0][0]) if known else []
    family = made(["name", *labels])
    for found, value in known:
        family.add_metric([plain(text, LABEL_LIMIT) for text in (name, *found.values())], value)
    return family
