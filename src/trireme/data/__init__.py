"""Data: sources to documents, documents to tokens, tokens to samples in an order that is a pure function."""

from trireme.data.batch import Batch
from trireme.data.build import build_store
from trireme.data.cache import cache_folder
from trireme.data.corpus import CORPORA, Corpus
from trireme.data.document import Document, SourceCounts
from trireme.data.example import Example, build_example
from trireme.data.loader import Loader
from trireme.data.order import share_of_rank
from trireme.data.prepare import PreparedData, prepare_data
from trireme.data.progress import Progress, Silent
from trireme.data.reader import read_documents
from trireme.data.report import DataReport
from trireme.data.report_view import format_example, format_report, summary_lines
from trireme.data.source import resolve_source
from trireme.data.store import TokenStore
from trireme.data.stream import SampleStream
from trireme.data.tokenizer import Tokenizer
from trireme.data.tokenizer_folder import load_tokenizer
from trireme.data.tokenizer_load import (
    TokenizerReport,
    measure_tokenizer,
    resolve_tokenizer,
    train_tokenizer_on,
)
from trireme.data.tokenizer_train import train_tokenizer
from trireme.data.wordlist import WordList, load_words

__all__ = [
    "CORPORA",
    "Batch",
    "Corpus",
    "DataReport",
    "Document",
    "Example",
    "Loader",
    "PreparedData",
    "Progress",
    "SampleStream",
    "Silent",
    "SourceCounts",
    "TokenStore",
    "Tokenizer",
    "TokenizerReport",
    "WordList",
    "build_example",
    "build_store",
    "cache_folder",
    "format_example",
    "format_report",
    "load_tokenizer",
    "load_words",
    "measure_tokenizer",
    "prepare_data",
    "read_documents",
    "resolve_source",
    "resolve_tokenizer",
    "share_of_rank",
    "summary_lines",
    "train_tokenizer",
    "train_tokenizer_on",
]
