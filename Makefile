# make demo          a federated run on this machine, from a fresh clone
# make demo-flower   the same with real clients: a server, three nodes, TLS and keys, on this machine
# make quick         before a commit, in three minutes: format, lint, types, and the tests that take a moment
# make test          the same with all tests but the slow ones, in about five minutes
# make test-all      the same with every test: all methods on all engines and runtimes, real processes, kills
# make storm         1,000 kills and 1,000 interruptions at random moments lose no bit; takes an hour or two
# make fuzz          20,000 odd inputs: files, command lines, data, messages; each ends in a result or a sentence
# make docs          builds the documentation site into site/, strictly: a broken link fails
# make release-check builds the wheel, installs it into an empty environment and runs it there
# make clean         remove what these made
#
# Only Python 3.11 or newer and make are needed; name another interpreter with `make PYTHON=python3.12 demo`.
# On Linux the index's own build of torch is the large CUDA one. A CPU build of torch is enough: see PyTorch's
# own instructions for where its CPU wheels are, and set pip's PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to it.

PYTHON ?= python3
BIN := .venv/bin
CASES ?= 20000
SEED ?= 0

# pip hands the environment, not its arguments, to the build of the package: without these two variables
# (one for older, one for newer versions of pip) the build backend would not be pinned.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	|| { echo "PYTHON = $(PYTHON) is not possible; it must be Python 3.11 or newer" >&2; exit 1; }
$(PYTHON) -m venv .venv
$(BIN)/python -m pip install --quiet -c constraints.txt -e '$(1)'
endef

.PHONY: demo demo-flower quick test test-all storm fuzz damage docs release-check clean

demo: .venv/installed
	$(BIN)/coterie demo

demo-flower: .venv/installed-flower
	$(BIN)/coterie flower demo

# What they do stands in tests/check.py, which also runs where there is no make.
quick test: .venv/installed-dev
	$(BIN)/python -m tests.check $@

test-all: .venv/installed-dev
	$(BIN)/python -m tests.check all

storm: .venv/installed-dev
	$(BIN)/python -m tests.storm --kills 1000
	$(BIN)/python -m tests.interruptions --moments 1000

fuzz: .venv/installed-dev
	$(BIN)/python -m tests.fuzz --cases $(CASES) --seed $(SEED)

damage: .venv/installed-dev
	$(BIN)/python -m tests.damage --seed $(SEED)

docs: .venv/installed-dev
	$(BIN)/python -m mkdocs build --strict

release-check: .venv/installed-dev
	$(BIN)/python -m tests.release

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	$(call install,.)
	@touch $@

.venv/installed-flower: pyproject.toml constraints.txt
	$(call install,.[flower])
	@touch .venv/installed $@

# The dev extra contains the package and Flower, so after the tests a demo has nothing left to install.
.venv/installed-dev: pyproject.toml constraints.txt
	$(call install,.[dev])
	@touch .venv/installed .venv/installed-flower $@
