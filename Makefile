# penstock: everything a developer or CI calls. `make` lists the targets.
GO        ?= go
BIN       := bin/penstock
VERSION   := $(shell git describe --always --dirty 2>/dev/null)
GOBUILD   := $(GO) build -trimpath -buildvcs=false
LDFLAGS   := -s -w -X main.release=$(VERSION)
export CGO_ENABLED = 0

# Packages whose tests start processes on an emulated card and measure time: they run one after another.
LIVE      := /(cmd|bench|internal/(agent|emu|engine|hostile))(/|$$)
# Processes that `make test-node` kills at random moments.
KILLS     ?= 1000

.DEFAULT_GOAL := help
.PHONY: help build test lint generate verify hostile test-node test-kube bench demo sim-repro fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

build: ## build bin/penstock
	$(GOBUILD) -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/penstock

test: ## unit tests, and the engine on the emulated card (under 5 minutes)
	$(GO) build ./...
	@status=0; \
	$(GO) test -timeout 120s $$($(GO) list ./... | grep -Ev '$(LIVE)') || status=1; \
	$(GO) test -timeout 280s -p 1 $$($(GO) list ./... | grep -E '$(LIVE)') || status=1; \
	exit $$status

lint: ## gofmt, vet and staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'lint: the files above need gofmt'; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

generate: ## write the generated files anew
	$(GO) generate ./...

verify: generate ## fail when a generated file or go.mod is not up to date
	$(GO) mod tidy -diff
	@git diff --exit-code -- '*zz_*' || { echo 'verify: generated files differ; commit the result of make generate'; exit 1; }

hostile: build ## the hostile tenant suite on the emulated card
	$(BIN) hostile

test-node: build ## engine and agent with real processes: repeated, and with KILLS=1000 kill -9
	@status=0; \
	$(GO) test -timeout 120s -p 1 -count=2 -skip TestStorm ./internal/engine/... ./internal/emu/... ./internal/agent ./cmd/... || status=1; \
	PENSTOCK_KILLS=$(KILLS) $(GO) test -timeout 400s -count=1 -run TestStorm ./cmd/penstock || status=1; \
	exit $$status

test-kube: ## the Kubernetes parts against a real control plane
	@echo 'test-kube: there are no Kubernetes parts yet'

bench: build ## isolation on the emulated card; on a GPU machine see docs/bench/README.md
	$(GOBUILD) -o bin/isolation ./bench/isolation
	bin/isolation -emulated virtual -out out/bench
	bin/isolation -emulated auto -quick -penstock $(BIN) -out out/bench

demo: build ## three tenants on this machine's GPU, or on an emulated one
	$(BIN) demo

sim-repro: ## the published scheduling tables, from the traces in PENSTOCK_TRACES (about a minute)
	PENSTOCK_LONG=1 $(GO) test -count=1 -timeout 30m -run PublishedTables -v ./internal/sim

fuzz: ## each decoder for a short while: FUZZTIME=5s
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
		$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-5s} $$p || exit 1; done; done

clean: ## remove what the targets made
	rm -rf bin out
