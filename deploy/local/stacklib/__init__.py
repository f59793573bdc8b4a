# SPDX-License-Identifier: Apache-2.0
"""The parts of deploy/local/stack: state (what is remembered), process (identity and signals), probes (readiness),
members (what a stack consists of), cli (the verbs). Standard library only."""
