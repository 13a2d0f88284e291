"""Serve a network with FastAPI.

Run ``uvicorn examples.serving:app``, with fastapi and uvicorn installed.
"""

from queue import SimpleQueue

import numpy as np
import pytensor
import pytensor.tensor as pt
from fastapi import FastAPI
from pydantic import BaseModel

from dnnops import layers, nnet

# Calls that may run at the same time. Every copy of the function has its own storage.
CONCURRENT = 4

net = layers.Sequential(
    layers.Linear(4, 32, dtype="float32"), nnet.relu, layers.Linear(32, 3, dtype="float32")
).eval()
x = pt.fmatrix("x")
predict = pytensor.function([x], nnet.softmax(net(x)), mode="DNN")
# net.load("net.safetensors")

functions: SimpleQueue = SimpleQueue()
for _ in range(CONCURRENT):
    functions.put(predict.copy())

app = FastAPI()


class Rows(BaseModel):
    """The body of a request."""

    rows: list[list[float]]


@app.post("/predict")
def answer(body: Rows) -> list[list[float]]:
    """Return the probabilities of the classes of each row.

    FastAPI calls a function that is not ``async`` in one of its threads.
    """
    function = functions.get()
    try:
        return function(np.asarray(body.rows, "float32")).tolist()
    finally:
        functions.put(function)
