"""Networks of Hugging Face's transformers, from a folder on this machine or from a configuration alone."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from kinfolk.by_path import one_line
from kinfolk.errors import KinfolkError, near
from kinfolk.learning.freezing import FEW

FIELD = "model.name"
PREFIX = "hf:"
# Of a configuration: read here, or telling what code is to be fetched or run besides the network's.
NOT_READ = ("architectures", "auto_map", "quantization_config")


def hugging_face_model(path: str, outputs: int, options: Mapping[str, object]) -> nn.Module:
    """The network of a folder with `config.json` and `model.safetensors`, or of a configuration file.

    Of a configuration alone weights are drawn. Nothing is downloaded. Options: `architecture` is a class of
    transformers, the one that the configuration names if not given; all others replace entries of the
    configuration. A class that classifies gets as many labels as the data have.

    >>> hugging_face_model("nowhere", 2, {})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model.name = 'hf:nowhere': no such folder or config.json...
    """
    name, folder = f"{PREFIX}{path}", Path(path)
    file = folder / "config.json" if folder.is_dir() else folder
    if not file.is_file():
        remedy = "no such folder or config.json; save the model there first, since nothing is downloaded"
        raise KinfolkError(FIELD, name, remedy)
    if find_spec("transformers") is None:
        raise KinfolkError(FIELD, name, "needs packages of an extra: pip install 'kinfolk[hf]'")
    config, kind = _configured(name, file, outputs, dict(options))
    try:
        if folder.is_dir() and any(folder.glob("*.safetensors")):
            return _loaded(name, kind, folder, config)
        network: nn.Module = kind(config)
    except KinfolkError:
        raise
    except Exception as error:  # whatever a configuration leads to
        raise KinfolkError(FIELD, name, f"it could not be built: {one_line(error)[:200]}") from error
    if folder.is_dir() and [*folder.glob("*.bin"), *folder.glob("*.pt")]:
        remedy = "holds pickled weights, which can run code when read; save them with safe_serialization=True"
        raise KinfolkError(FIELD, name, remedy)
    return network


def _configured(name: str, file: Path, outputs: int, options: dict[str, Any]) -> tuple[Any, Any]:
    """The configuration and the class of a network."""
    import transformers

    wanted = options.pop("architecture", None)
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        config = transformers.AutoConfig.for_model(**{k: v for k, v in given.items() if k not in NOT_READ})
    except Exception as error:  # an unknown or broken configuration
        raise KinfolkError(
            FIELD, name, f"{file.name} is no configuration: {one_line(error)[:160]}"
        ) from error
    for option, value in options.items():
        if not hasattr(config, option):
            remedy = f"{config.model_type} has no such option; {near(option, config.to_dict())}"
            raise KinfolkError(f"model.{option}", value, remedy)
        setattr(config, option, value)
    known = given.get("architectures") or []
    if not wanted and not known:
        remedy = "names no architecture; set model.architecture, as 'BertForSequenceClassification'"
        raise KinfolkError(FIELD, name, remedy)
    called = str(wanted or known[0])
    kind = getattr(transformers, called, None)
    # Of whatever else transformers has, nothing is called: a configuration may be a stranger's.
    if not (inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedModel)):
        raise KinfolkError("model.architecture", called, "transformers has no such network")
    if "Classification" in called:
        config.num_labels = outputs
    # As `eager` sees to in the end. Other words can name kernels on the net, to be fetched and run.
    config._attn_implementation = config._experts_implementation = "eager"
    return config, kind


def _loaded(name: str, kind: Any, folder: Path, config: Any) -> nn.Module:
    """The class with the weights of a folder; only a head that the folder has no weights for is drawn."""
    from transformers.utils import logging

    loud, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        network, told = kind.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    finally:
        logging.set_verbosity(loud)
        if bars:
            logging.enable_progress_bar()
    # A head of another size and a pooler are begun anew, as in transformers; the body must be whole.
    body = f"{kind.base_model_prefix}."
    wrong = [str(entry[0]) for entry in told["mismatched_keys"] if str(entry[0]).startswith(body)]
    wrong += [key for key in told["missing_keys"] if key.startswith(body) and "pooler" not in key]
    if wrong:
        remedy = f"{len(wrong)} weights are missing or of another size: {', '.join(sorted(wrong)[:FEW])}"
        raise KinfolkError(FIELD, name, f"{remedy}; give the folder of a {kind.__name__}")
    made: nn.Module = network.train()
    return made


def eager(layer: nn.Module) -> nn.Module:
    """The layer; a network of transformers computes attention by plain products from then on.

    Its other ways, and its warning about padding, look at values, which clients in one call cannot share.

    >>> eager(nn.ReLU())
    ReLU()
    """
    whole: Any = layer
    if any(kind.__name__ == "PreTrainedModel" for kind in type(layer).__mro__):
        whole.set_attn_implementation("eager")
        whole.config.use_cache = False  # what a generator remembers of a text is of no use in training
        whole.warn_if_padding_and_no_attention_mask = _no_warning
    return layer


def _no_warning(*given: Any) -> None:
    """In place of a warning."""
