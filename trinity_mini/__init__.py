"""TRINITY in miniature: a coordinator for a pool of language models, built to be read.

Nothing heavy is imported here: `import trinity_mini` loads neither torch nor transformers nor litellm.
"""

__version__ = "0.1.0"
