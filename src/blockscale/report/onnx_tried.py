"""A program of its own: whether onnxruntime makes a session of the model on stdin; a line of JSON for each answer.

With the path of an operator library it also tries with that. See `onnx_runs`.
"""

from __future__ import annotations

import json
import re
import sys

_HEAD = re.compile(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : (\S+\.(cc|h):\d+ .*\) (?=[A-Z]))?")


def main() -> None:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    print(json.dumps({"version": ort.__version__}), flush=True)
    proto = sys.stdin.buffer.read()
    for key, libraries in (("stock", []), ("library", sys.argv[1:])):
        if key == "library" and not libraries:
            continue
        try:
            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            for library in libraries:
                options.register_custom_ops_library(library)
            ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
            said = ""
        except Exception as error:
            said = _HEAD.sub(r"\1: ", str(error)) or type(error).__name__
        print(json.dumps({key: said}), flush=True)


if __name__ == "__main__":
    main()
