"""Plain modules: the reference decoder, anyone's factory, Hugging Face folders; and what they are asked to do."""

from trireme.models.bare import Bare, bare_from_config, bare_from_factory, token_batch
from trireme.models.build import build_decoder, build_model
from trireme.models.call import call_model, check_isolation, forward_inputs
from trireme.models.cross_entropy import IGNORED, check_labels, token_cross_entropy
from trireme.models.decoder import Decoder, meta_decoder
from trireme.models.deferred import DeferredLogits, deferring, output_matrices
from trireme.models.dropout import CountedDropout, DropoutClock, set_dropout_clock
from trireme.models.factory import Factory, build_from_factory, find_factory
from trireme.models.generate import context_length, generate
from trireme.models.host_heap import keep_freed_memory
from trireme.models.initial import initialise, initialise_parameter
from trireme.models.load import Loaded, load_decoder, load_folder, load_folder_weights
from trireme.models.precision import mixed_precision, module_device
from trireme.models.save import save_folder
from trireme.models.summary import ModelSummary, describe_model
from trireme.models.weights import load_weights

__all__ = [
    "IGNORED",
    "Bare",
    "CountedDropout",
    "Decoder",
    "DeferredLogits",
    "DropoutClock",
    "Factory",
    "Loaded",
    "ModelSummary",
    "bare_from_config",
    "bare_from_factory",
    "build_decoder",
    "build_from_factory",
    "build_model",
    "call_model",
    "check_isolation",
    "check_labels",
    "context_length",
    "deferring",
    "describe_model",
    "find_factory",
    "forward_inputs",
    "generate",
    "initialise",
    "initialise_parameter",
    "keep_freed_memory",
    "load_decoder",
    "load_folder",
    "load_folder_weights",
    "load_weights",
    "meta_decoder",
    "mixed_precision",
    "module_device",
    "output_matrices",
    "save_folder",
    "set_dropout_clock",
    "token_batch",
    "token_cross_entropy",
]
