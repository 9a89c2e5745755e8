"""Write the data that need a GPU: its environment, golden data, hashes of draws.

``python tools/gpu_golden.py environment|draws|torch --out FOLDER``; called by
``benchmarks/gpu_session.sh``. The files of ``draws`` and ``torch`` belong in ``tests/data/``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]

_PACKAGES = [
    "nbrt",
    "numpy",
    "numba",
    "numba-cuda",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cuda-core",
    "cuda-bindings",
    "torch",
]
_SEED = 0x1234_5678_9ABC_DEF0
_SIZES = (1, 3, 1024, 100_003)
_TORCH_SIZES = (1, 5, 1000, 300_001)
_ENDS = 256


def main() -> int:
    """Write one kind of data; return 1 if bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("environment", "draws", "torch"))
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    return {"environment": write_environment, "draws": write_draws, "torch": write_torch}[
        chosen.what
    ](chosen.out)


def write_environment(folder: Path) -> int:
    """Write device, driver, versions, commit and date, as JSON and as text."""
    found = describe()
    (folder / "environment.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    lines = [f"{name}: {value}" for name, value in found.items() if not isinstance(value, dict)]
    lines += [f"{name} {value}" for name, value in found["versions"].items()]
    (folder / "environment.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    return 0 if found["device"] else 1


def describe() -> dict[str, Any]:
    """Return the environment as plain values."""
    import nbrt

    reason = nbrt.get_interface_for_device("cuda").unavailable_reason()
    properties = nbrt.get_device_properties("cuda:0") if reason is None else None
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "commit": _output("git", "rev-parse", "HEAD") or "unknown",
        "changed_files": len(_output("git", "status", "--porcelain").splitlines()),
        "device": properties.name if properties else None,
        "unavailable": reason,
        "devices": nbrt.device_count("cuda"),
        "compute_capability": properties.compute_capability if properties else None,
        "multi_processor_count": properties.multi_processor_count if properties else None,
        "total_memory": properties.total_memory if properties else None,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
    }


def write_draws(folder: Path) -> int:
    """Draw everything on cpu and cuda; write the hashes, and whether the bits are equal."""
    from nbrt.testing.draws import draw_cases

    rows, differing = [], 0
    for case in draw_cases():
        for size in _SIZES:
            digests = [case.digest(_SEED, size, place, 28) for place in ("cpu:0", "cuda:0")]
            row = {
                "draw": str(case),
                "size": size,
                "sha256": digests[0],
                "equal": digests[0] == digests[1],
            }
            differing += not row["equal"]
            rows.append(row)
            print(*row.values())
    result = {"seed": _SEED, "offset": 28, "environment": describe(), "draws": rows}
    path = folder / "draw_bits.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{differing} of {len(rows)} draws differ between cpu and cuda")
    return 1 if differing else 0


def write_torch(folder: Path) -> int:
    """Write values and generator states of torch's CUDA generator, for the torch layout."""
    # No import statement: torch is not a dependency, and type checkers would search for it.
    torch: Any = importlib.import_module("torch")

    if not torch.cuda.is_available():
        print("torch has no CUDA here")
        return 1
    device = torch.device("cuda:0")
    properties = torch.cuda.get_device_properties(device)
    draws: dict[str, Any] = {
        "rand_float32": lambda n: torch.rand(n, device=device),
        "rand_float64": lambda n: torch.rand(n, device=device, dtype=torch.float64),
        "randn_float32": lambda n: torch.randn(n, device=device),
        "randn_float64": lambda n: torch.randn(n, device=device, dtype=torch.float64),
        "randint100_int64": lambda n: torch.randint(0, 100, (n,), device=device),
        "randint_wide_int64": lambda n: torch.randint(0, 2**40 + 3, (n,), device=device),
        "random_int32": lambda n: torch.empty(n, dtype=torch.int32, device=device).random_(),
    }
    found: dict[str, Any] = {}
    for seed in (0, 7, 2**40 + 5):
        for name, draw in draws.items():
            for size in _TORCH_SIZES:
                torch.cuda.manual_seed(seed)
                before = torch.cuda.get_rng_state(device).numpy()
                values = draw(size).cpu().numpy()
                after = torch.cuda.get_rng_state(device).numpy()
                key = f"{name}.{seed}.{size}"
                # Enough to find a fault by; the hash covers the rest.
                found[f"{key}.head"] = values[:_ENDS]
                found[f"{key}.tail"] = values[-_ENDS:]
                found[f"{key}.sha256"] = np.frombuffer(
                    hashlib.sha256(values.tobytes()).digest(), np.uint8
                )
                found[f"{key}.before"], found[f"{key}.after"] = before, after
    found["about"] = np.array(
        json.dumps(
            {
                "torch": torch.__version__,
                "device": properties.name,
                "multi_processor_count": properties.multi_processor_count,
                "max_threads_per_multi_processor": properties.max_threads_per_multi_processor,
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    )
    path = folder / "torch_cuda_random.npz"
    np.savez_compressed(path, **found)
    print(f"{len(found)} arrays in {path}, {path.stat().st_size} bytes")
    return 0


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
