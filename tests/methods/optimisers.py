"""Optimisers that are compared with those of torch."""

OPTIMISERS = {
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
}
