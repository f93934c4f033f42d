"""A torch model in MXFP4: quantize, look at the report, compare with the float model, save, load.

python examples/quantize_torch.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import blockscale as bs


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(ids)).mean(1))


def main() -> None:
    torch.manual_seed(0)
    model = Classifier().eval()
    ids = torch.randint(0, 1000, (8, 32))

    # MX layouts make their scales from the values: nothing is calibrated. int8 would ask for calibration=[…].
    qm = bs.quantize_model(model, "mxfp4", example_inputs=ids)
    print(qm.report)

    # Which tensors suffer most? Batches that no example was made with are what to compare on.
    batches = [torch.randint(0, 1000, (8, 32)) for _ in range(4)]
    print()
    print(bs.compare(model, qm, batches))

    # A more careful recipe: 8-bit inputs, and a head that stays float.
    careful = bs.Recipe([bs.Rule("float", name="head")], base="mxfp4-mxint8")
    better = bs.quantize_model(model, careful, example_inputs=ids)
    before, after = (bs.compare(model, one, batches).outputs[0].sqnr for one in (qm, better))
    print(
        f"\nSQNR of the output: {before:.1f} dB with mxfp4, {after:.1f} dB with 8-bit inputs and a float head"
    )

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "classifier.pt2"
        better.save(path)
        loaded = bs.load(path)
        same = torch.equal(loaded(ids), better(ids))
        print(
            f"saved as {path.name}: {path.stat().st_size / 1e3:.0f} kB, loaded with the same results: {same}"
        )


if __name__ == "__main__":
    main()
