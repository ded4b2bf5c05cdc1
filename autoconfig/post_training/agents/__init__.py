"""Rollouts of agents: samples of several turns with tools between them."""
