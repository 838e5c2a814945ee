"""Data: sources to documents, documents to tokens, tokens to samples in an order that is a pure function."""

from trireme.data.build import build_store
from trireme.data.cache import cache_folder
from trireme.data.corpus import CORPORA, Corpus
from trireme.data.document import Document, SourceCounts
from trireme.data.progress import Progress, Silent
from trireme.data.reader import read_documents
from trireme.data.source import resolve_source
from trireme.data.store import TokenStore
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
    "Corpus",
    "Document",
    "Progress",
    "Silent",
    "SourceCounts",
    "TokenStore",
    "Tokenizer",
    "TokenizerReport",
    "WordList",
    "build_store",
    "cache_folder",
    "load_tokenizer",
    "load_words",
    "measure_tokenizer",
    "read_documents",
    "resolve_source",
    "resolve_tokenizer",
    "train_tokenizer",
    "train_tokenizer_on",
]
