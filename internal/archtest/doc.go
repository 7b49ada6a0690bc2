// Package archtest holds the project's import rules as a test: arrows point
// down, the pure packages stay pure, unsafe has one home.
package archtest
