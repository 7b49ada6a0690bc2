package nvidia

func classes570(t *Table) {
	for _, c := range t.Classes() {
		if c.Kind == KindChannel {
			t.resizeClass(c.Class, SizeChannelParams)
		}
	}
	t.resizeClass(ClassMemoryMapper, 24)
	t.addClasses(
		class(KindChannel, "BLACKWELL_CHANNEL_GPFIFO_A", 0xc96f, 368).as(Judge),
		class(KindChannel, "BLACKWELL_CHANNEL_GPFIFO_B", 0xca6f, 368).as(Judge),
		class(KindEngine, "BLACKWELL_DMA_COPY_A", 0xc9b5, 0, 8),
		class(KindEngine, "BLACKWELL_DMA_COPY_B", 0xcab5, 0, 8),
		class(KindEngine, "BLACKWELL_INLINE_TO_MEMORY_A", 0xcd40, 0, 16),
		class(KindEngine, "BLACKWELL_A", 0xcd97, 0, 16),
		class(KindEngine, "NVCDB0_VIDEO_DECODER", 0xcdb0, 0, 12),
		class(KindEngine, "BLACKWELL_COMPUTE_A", 0xcdc0, 0, 16),
		class(KindEngine, "NVCDD1_VIDEO_NVJPG", 0xcdd1, 0, 12),
		class(KindEngine, "NVCDFA_VIDEO_OFA", 0xcdfa, 0, 12),
		class(KindEngine, "BLACKWELL_B", 0xce97, 0, 16),
		class(KindEngine, "BLACKWELL_COMPUTE_B", 0xcec0, 0, 16),
		class(KindEngine, "NVCFB0_VIDEO_DECODER", 0xcfb0, 0, 12),
		class(KindEngine, "NVCFB7_VIDEO_ENCODER", 0xcfb7, 0, 12),
		class(KindEngine, "NVCFD1_VIDEO_NVJPG", 0xcfd1, 0, 12),
		class(KindEngine, "NVCFFA_VIDEO_OFA", 0xcffa, 0, 12),
		class(KindObject, "BLACKWELL_USERMODE_A", 0xc761, 0, 2),
	)
}

func classes580(t *Table) {
	t.resizeClass(ClassVASpace, 56)
	t.addClasses(
		class(KindEngine, "NVCEB0_VIDEO_DECODER", 0xceb0, 0, 12),
		class(KindEngine, "NVCEB7_VIDEO_ENCODER", 0xceb7, 0, 12),
		class(KindEngine, "NVCED0_VIDEO_NVJPG", 0xced0, 0, 12),
		class(KindEngine, "NVCEFA_VIDEO_OFA", 0xcefa, 0, 12),
		class(KindEngine, "NVD1B0_VIDEO_DECODER", 0xd1b0, 0, 12),
		class(KindEngine, "NVD1B7_VIDEO_ENCODER", 0xd1b7, 0, 12),
		class(KindEngine, "NVD1FA_VIDEO_OFA", 0xd1fa, 0, 12),
	)
}

func classes590(t *Table) {
	t.resizeClass(0x503b, 88) // NV50_P2P
}

func classes595(t *Table) {
	t.dropClass(ClassMemoryExtended)
}
