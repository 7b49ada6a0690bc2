// Package gpu holds observed facts about accelerators and the machines around them: devices, links, NICs,
// MIG layouts, network positions. It has values only: no clock, no logger, no environment, no driver. Whoever
// observes the hardware (NVML, sysfs, a trace, a generator) fills these types; the decision core reads them.
//
// Quantities carry their unit in their type: Bytes, Milli (thousandths of one card or one core), Percent.
package gpu
