"""TRIDAL_KERNELIZE=1 for `python -m tridal.run`: applies `tridal.kernelize` to every model that transformers builds."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tridal.devices import settings
from tridal.models.kernelize import replace_modules
from tridal.pytorch.device_context import log

VARIABLE = "TRIDAL_KERNELIZE"
MODULE = "transformers.modeling_utils"
"""The module of transformers' base class of models."""


def start_from_environment() -> None:
    """Applies `tridal.kernelize` to the models that transformers builds from now on, if the variable is true.

    Does not import transformers. If the program imports it later, its base class is changed then.

    Raises:
        SettingsError: the value of the variable is not a boolean.
    """
    if not settings.flag(VARIABLE):
        return
    if MODULE in sys.modules:
        _change(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Changes the module after its import. Python finds and loads it as before."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                _change(module)

            loader.exec_module = load_and_change
        return spec


def _change(module: Any) -> None:
    """Makes transformers' base class replace the modules of a model when the model's constructor ends."""
    base = module.PreTrainedModel
    post_init = base.post_init

    @functools.wraps(post_init)
    def post_init_and_kernelize(model: Any, *args: Any, **kwargs: Any) -> Any:
        result = post_init(model, *args, **kwargs)
        log.info("%s: %s", VARIABLE, replace_modules(model))
        return result

    base.post_init = post_init_and_kernelize
