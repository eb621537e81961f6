"""The version of this package, for every module that records it."""

VERSION = "0.1.0"
