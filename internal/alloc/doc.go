// Package alloc is the pure decision core: which cards of which machine a request gets, and why every other
// card was refused. The Kubernetes scheduler, the node agent and the simulator call the same code.
//
// It imports the standard library and package gpu only, and takes no clock, logger, context or environment: the
// same fleet, request and policy give the same verdict, always.
//
//	fleet, _ := alloc.NewFleet(machines)           // who is there, what is free
//	placer := alloc.NewPlacer(fleet, policy)       // scores cached per (request class, node)
//	verdict := placer.Place(&request)              // read-only: a placement, or typed reasons
//	txn := fleet.Begin()                           // a transaction with its own undo
//	txn.Grant(verdict.Placement)
//	txn.Commit()                                   // or txn.Undo()
package alloc
