package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"runsc-fs/blobfs/format"
)

// SignatureBlobfs is what Signature calls a file system of ours.
const SignatureBlobfs = "a blobfs"

// magic is a mark at a fixed place.
type magic struct {
	what   string
	offset int64
	mark   string
}

// magics are marks of what people keep on disks. Partition tables come last: a
// file system over the whole disk may have the mark of one.
var magics = []magic{
	{"an ext2, ext3 or ext4 file system", 1024 + 56, "\x53\xef"},
	{"an XFS file system", 0, "XFSB"},
	{"a Btrfs file system", 64<<10 + 64, "_BHRfS_M"},
	{"a bcachefs file system", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"an F2FS file system", 1024, "\x10\x20\xf5\xf2"},
	{"an EROFS file system", 1024, "\xe2\xe1\xf5\xe0"},
	{"a squashfs file system", 0, "hsqs"},
	{"an NTFS file system", 3, "NTFS    "},
	{"an exFAT file system", 3, "EXFAT   "},
	{"a FAT file system", 82, "FAT32   "},
	{"a FAT file system", 54, "FAT1"},
	{"an ISO 9660 file system", 32<<10 + 1, "CD001"},
	{"a LUKS volume", 0, "LUKS\xba\xbe"},
	{"an LVM physical volume", 0, "LABELONE"},
	{"an LVM physical volume", 512, "LABELONE"},
	{"an LVM physical volume", 1024, "LABELONE"},
	{"an LVM physical volume", 1536, "LABELONE"},
	{"a member of a RAID", 0, "\xfc\x4e\x2b\xa9"},
	{"a member of a RAID", 4096, "\xfc\x4e\x2b\xa9"},
	{"swap space", 4096 - 10, "SWAPSPACE2"},
	{"a Ceph BlueStore", 0, "bluestore block device"},
	{"a GPT partition table", 512, "EFI PART"},
	{"a GPT partition table", 4096, "EFI PART"},
}

// headBytes has all magics; ZFS has its marks behind them.
const headBytes = 256 << 10

// Signature says what a disk holds that is known by its marks; "" if nothing is.
func Signature(disk io.ReaderAt, sizeBytes int64) (string, error) {
	head := make([]byte, min(headBytes, sizeBytes))
	n, err := disk.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	head = head[:n]
	if isBlobfs(disk, sizeBytes) {
		return SignatureBlobfs, nil
	}
	for _, m := range magics {
		if int64(len(head)) >= m.offset+int64(len(m.mark)) && string(head[m.offset:][:len(m.mark)]) == m.mark {
			return m.what, nil
		}
	}
	// ZFS: an array of uberblocks in the second half of the first label.
	const zfsMagic = 0x00bab10c
	for off := 128 << 10; off+8 <= len(head); off += 1 << 10 {
		if binary.LittleEndian.Uint64(head[off:]) == zfsMagic || binary.BigEndian.Uint64(head[off:]) == zfsMagic {
			return "a member of a ZFS pool", nil
		}
	}
	if found, err := raidAtEnd(disk, sizeBytes); found || err != nil {
		return "a member of a RAID", err
	}
	if isMBR(head) {
		return "an MBR partition table", nil
	}
	return "", nil
}

// isMBR tells whether a sector has the mark of a boot sector and an entry in its table.
func isMBR(head []byte) bool {
	const table, entryBytes, entries = 446, 16, 4
	if len(head) < 512 || head[510] != 0x55 || head[511] != 0xaa {
		return false
	}
	return !bytes.Equal(head[table:][:entryBytes*entries], make([]byte, entryBytes*entries))
}

// raidAtEnd finds Linux's RAID superblocks of versions 0.90 and 1.0.
func raidAtEnd(disk io.ReaderAt, sizeBytes int64) (bool, error) {
	const blockBytes = 64 << 10
	for _, off := range []int64{sizeBytes&^(blockBytes-1) - blockBytes, (sizeBytes - 8<<10) &^ 4095} {
		var b [4]byte
		if off <= 0 {
			continue
		}
		if _, err := disk.ReadAt(b[:], off); err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if string(b[:]) == "\xfc\x4e\x2b\xa9" {
			return true, nil
		}
	}
	return false, nil
}

// isBlobfs tells whether there is a superblock of blobfs, of whatever version.
func isBlobfs(disk io.ReaderAt, sizeBytes int64) bool {
	if sizeBytes < format.MinBlocks*format.BlockSizeBytes {
		return false
	}
	var slots [format.SuperblockSlots][]byte
	for i := range slots {
		block := make([]byte, format.BlockSizeBytes)
		if _, err := disk.ReadAt(block, format.SuperblockAddr(i).OffsetBytes()); err == nil {
			slots[i] = block
		}
	}
	_, _, err := format.BestSuperblock(slots, uint64(sizeBytes)/format.BlockSizeBytes)
	return !errors.Is(err, format.ErrNotBlobfs)
}
