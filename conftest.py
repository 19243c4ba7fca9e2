"""For every pytest run, of the tests as of the notebooks (nbval): environment and comparison.

At the root, since nbval's hook must reach notebooks/, and a learner's folder holds lessons only.
"""

import os

# Before anything imports torch, transformers or litellm; the kernels of nbval inherit it.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TQDM_DISABLE="1",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
)
os.environ.pop("MPLBACKEND", None)  # a kernel draws inline, as in JupyterLab


def pytest_collectstart(collector):
    """nbval compares what a cell prints, not how it is drawn."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += (
            "text/html",
            "application/javascript",
            "application/vnd.jupyter.widget-view+json",
            "stderr",
        )
