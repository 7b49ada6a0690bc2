#include "textflag.h"

// func int80(nr, a, b, c uintptr) (ret uintptr)
TEXT ·int80(SB), NOSPLIT, $0-40
	MOVQ nr+0(FP), AX
	MOVQ a+8(FP), BX
	MOVQ b+16(FP), CX
	MOVQ c+24(FP), DX
	INT  $0x80
	MOVQ AX, ret+32(FP)
	RET

// func cloneScript(flags, stack uintptr, script *[8]uintptr, n uintptr) (ret uintptr)
TEXT ·cloneScript(SB), NOSPLIT, $0-40
	MOVQ flags+0(FP), DI
	MOVQ stack+8(FP), SI
	MOVQ script+16(FP), R12
	MOVQ n+24(FP), R13
	XORQ DX, DX
	XORQ R10, R10
	XORQ R8, R8
	MOVQ $56, AX
	SYSCALL
	TESTQ AX, AX
	JZ   inchild
	MOVQ AX, ret+32(FP)
	RET

inchild:
	CMPQ R13, $0
	JE   over
	MOVQ 0(R12), AX
	MOVQ 8(R12), DI
	MOVQ 16(R12), SI
	MOVQ 24(R12), DX
	MOVQ 32(R12), R10
	MOVQ 40(R12), R8
	MOVQ 48(R12), R9
	SYSCALL
	MOVQ AX, 56(R12)
	ADDQ $64, R12
	DECQ R13
	JMP  inchild

over:
	MOVQ $60, AX
	XORQ DI, DI
	SYSCALL
	JMP  over
