"""The request: models, and the shapes that one replica may have. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster.placement.planning.cluster import CPU, GPU, MEMORY, parse_selector

STRICT_PACK, STRICT_SPREAD, PACK = "STRICT_PACK", "STRICT_SPREAD", "PACK"
STRATEGIES = (STRICT_PACK, STRICT_SPREAD, PACK)


@dataclass(frozen=True)
class Shape:
    """One way to lay out a replica: `count` equal bundles."""

    count: int
    bundle: Mapping[str, float]
    strategy: str

    def __str__(self) -> str:
        each = " + ".join(f"{amount:g} {name}" for name, amount in sorted(self.bundle.items()) if name != MEMORY)
        if MEMORY in self.bundle:
            each += f" + {self.bundle[MEMORY] / 2**30:.3g} GiB memory"
        return each if self.count == 1 else f"{self.count} x ({each}), {self.strategy}"


@dataclass(frozen=True)
class Model:
    """`replicas` replicas of `tp` x `pp` ranks each; docs/reference/placement.md describes the fields."""

    name: str
    replicas: int = 1
    tp: int = 1
    pp: int = 1
    gpus_per_rank: int = 1
    cpus: float = 1.0
    memory: float = 0.0  # bytes
    cpus_per_gpu: float = 0.0
    memory_per_gpu: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    strategy: str | None = None
    bundles: int | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    same: str | None = None
    exclude_head: bool = False

    def __post_init__(self) -> None:
        for name in ("replicas", "tp", "pp", "bundles"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"model {self.name!r}: {name} must be at least 1, not {value}")
        amounts = {name: getattr(self, name) for name in ("gpus_per_rank", "cpus", "memory", "cpus_per_gpu")}
        amounts.update(memory_per_gpu=self.memory_per_gpu, **self.resources)
        for name, amount in amounts.items():
            if amount < 0:
                raise ValueError(f"model {self.name!r}: {name} must not be negative, not {amount}")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise ValueError(
                f"model {self.name!r}: strategy is one of {', '.join(STRATEGIES)} or none, not {self.strategy!r}"
            )
        if self.bundles is not None and (self.strategy is None or self.gpus % self.bundles):
            why = "needs a strategy" if self.strategy is None else f"must divide the replica's {self.gpus} GPUs"
            raise ValueError(f"model {self.name!r}: bundles={self.bundles} {why}")
        for wanted in self.selector.values():
            parse_selector(wanted)
        if not all(shape.bundle for shape in self.shapes()):
            raise ValueError(f"model {self.name!r}: a bundle must need something: a CPU, a GPU, memory or a resource")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.gpus_per_rank

    def shapes(self) -> list[Shape]:
        """Return the shapes that one replica may have, the preferred one first."""
        if self.strategy is not None:
            return [self._shape(self.bundles or self.pp, self.strategy)]
        splits = list(self._splits()) if self.gpus else [1]
        return [self._shape(count, STRICT_PACK if count == 1 else STRICT_SPREAD) for count in splits]

    def _splits(self) -> Iterator[int]:
        """Yield the numbers of equal parts of a replica: whole stages on each node, else every stage split equally."""
        for count in range(1, self.tp * self.pp + 1):
            if self.pp % count == 0 or (count % self.pp == 0 and self.tp % (count // self.pp) == 0):
                yield count

    def _shape(self, count: int, strategy: str) -> Shape:
        gpus = self.gpus // count
        bundle = {
            CPU: self.cpus + gpus * self.cpus_per_gpu,
            GPU: gpus,
            MEMORY: self.memory + gpus * self.memory_per_gpu,
            **self.resources,
        }
        return Shape(count, {name: amount for name, amount in bundle.items() if amount}, strategy)


def validate_models(models: Sequence[Model]) -> tuple[Model, ...]:
    """Return the models of one request; raises ValueError if two have the same name."""
    names = [model.name for model in models]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two models have the same name: {', '.join(repeated)}")
    return tuple(models)
