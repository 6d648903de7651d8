# runsc-fs: gVisor's runsc with blobfs volumes. 'make help' lists the targets.

BIN     := bin/runsc-fs
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD := -modfile .build/go.mod -trimpath -buildvcs=false
LDFLAGS := -s -w -X gvisor.dev/gvisor/runsc/version.version=runsc-fs-$(VERSION)

# The packages with tests of their own, besides the end-to-end tests.
UNIT := ./nvme/... ./blobfs/... ./sentry/... ./gofer/... ./oci/... ./runsc-fs/... ./tests/...

export CGO_ENABLED := 0

.DEFAULT_GOAL := build

## build: build bin/runsc-fs, a static binary
.PHONY: build
build: hooks
	@$(GO) build $(GOFLAGS_BUILD) -ldflags '$(LDFLAGS)' -o $(BIN) ./runsc-fs

## hooks: copy gVisor into .build and insert the hooks (only when something changed)
.PHONY: hooks
hooks:
	@$(GO) build -o .build/hookgen ./runsc-fs/hookgen
	@.build/hookgen

## vet: check the code, with and without the hooks, for amd64 and arm64
.PHONY: vet
vet: hooks
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt on these files' >&2; exit 1; }
	@$(GO) vet ./...
	@GOARCH=arm64 $(GO) vet ./...
	@$(GO) vet $(GOFLAGS_BUILD) ./runsc-fs/...

## lint: check what no compiler checks: imports, layout, file lengths, documents
.PHONY: lint
lint:
	@$(GO) test -count=1 ./tests/lint

## unit: run the tests that need neither root nor containers, with and without costly checks
.PHONY: unit
unit:
	@$(GO) test -timeout 15m $(UNIT)
	@$(GO) test -timeout 15m -tags invariants $(filter-out ./runsc-fs/... ./tests/...,$(UNIT))

## crash: look at N states that power cuts leave (N=100000), from SEED=1 on
.PHONY: crash
crash: N ?= 100000
crash: SEED ?= 1
crash:
	@$(GO) test -count=1 -timeout 60m -v ./blobfs/crashrig -crash.states=$(N) -crash.seed=$(SEED)

## e2e: run the tests with containers, dockerd, PostgreSQL, fio and SQLite; as root
.PHONY: e2e
e2e: build
	@RUNSC_FS_E2E=1 $(GO) test -count=1 -timeout 30m -p 1 -v $(if $(RUN),-run '$(RUN)') ./tests/e2e ./tests/abi ./tests/bench

## test-vfio: run the tests with NVMe devices under vfio-pci, in guests of QEMU; as root
.PHONY: test-vfio
test-vfio: build
	@RUNSC_FS_E2E=1 $(GO) test -count=1 -timeout 20m -v $(if $(RUN),-run '$(RUN)') ./tests/vfio

## test-vfio-full: run containers on NVMe devices in guests of QEMU, which takes minutes; as root
.PHONY: test-vfio-full
test-vfio-full: build
	@RUNSC_FS_E2E=1 $(GO) test -tags full -count=1 -timeout 30m -v -run '$(if $(RUN),$(RUN),^(TestContainer|TestTrouble)$$)' ./tests/vfio

## bench-nvme: measure what a read costs the driver: IOPS, percentiles, processor time, allocations
.PHONY: bench-nvme
bench-nvme:
	@$(GO) test -run '^$$' -bench 'RandomRead|Copy' -benchtime 2s $(if $(COUNT),-count $(COUNT)) ./nvme/soft

## prepare: install the packages that the tests need and build their root file system; as root
.PHONY: prepare
prepare:
	@$(GO) run ./tests/prepare

## demo: run PostgreSQL on a blobfs volume with Docker and look on; as root
.PHONY: demo
demo:
	@$(GO) run ./tests/demo

## bench: measure blobfs side by side with runsc, runc and FUSE (about an hour); as root
.PHONY: bench
bench: build
	@$(GO) run ./tests/bench

## bench-quick: some of it, in under five minutes; as root
.PHONY: bench-quick
bench-quick: build
	@$(GO) run ./tests/bench -quick

## test: everything that CI runs
.PHONY: test
test:
	@tests/step.sh prepare $(MAKE) --no-print-directory prepare
	@tests/step.sh build $(MAKE) --no-print-directory build
	@tests/step.sh vet $(MAKE) --no-print-directory vet
	@tests/step.sh lint $(MAKE) --no-print-directory lint
	@RUNSC_FS_REQUIRE_QEMU=1 tests/step.sh unit $(MAKE) --no-print-directory unit
	@tests/step.sh crash $(MAKE) --no-print-directory crash
	@tests/step.sh e2e $(MAKE) --no-print-directory e2e
	@tests/step.sh test-vfio $(MAKE) --no-print-directory test-vfio
	@tests/step.sh help $(MAKE) --no-print-directory help

## clean: remove what was built
.PHONY: clean
clean:
	@rm -rf bin .build

## help: list the targets
.PHONY: help
help:
	@echo 'Targets:'
	@sed -n 's/^## \([a-z0-9-]*\): /  \1\t/p' $(MAKEFILE_LIST) | sort | expand -t 20
