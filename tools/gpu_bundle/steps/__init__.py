"""The parts of the check. Each prints its rows as lines of JSON (`tools.gpu_bundle.report`)."""
