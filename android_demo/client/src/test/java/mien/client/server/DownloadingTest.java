package mien.client.server;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.Still;
import mien.client.model.Blob;
import mien.client.rounds.Conditions;
import mien.client.rounds.Leaving;
import mien.client.store.Folder;
import mien.client.wire.Bytes;
import mien.client.wire.Retry;
import mien.v1.Common.DataChunk;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A download goes on where it stopped, and nothing counts that is not what its hash says. */
public class DownloadingTest {
    private static final byte[] DATA = new byte[1000];
    private static final int PIECE = 100;

    static {
        new Random(1).nextBytes(DATA);
    }

    @Rule public final TemporaryFolder temporary = new TemporaryFolder();
    private final Blob blob = new Blob(Bytes.hex(Bytes.sha256(DATA)), DATA.length);
    private final List<Long> asked = new ArrayList<>();
    private final Still clock = new Still(0);
    private Folder folder;
    private long pieceTakesMs;
    private int closed;
    private Conditions conditions = Collections::emptyList;

    @Before
    public void open() {
        folder = new Folder(temporary.getRoot().toPath());
    }

    /** Serves pieces; each connection breaks after so many of them, where that is not 0. */
    private Downloading.Source server(byte[] served, int breaksAfter) {
        return (wanted, offset) -> {
            asked.add(offset);
            Iterator<DataChunk> chunks =
                    new Iterator<DataChunk>() {
                        private int at = (int) offset;
                        private int given;

                        @Override
                        public boolean hasNext() {
                            if (breaksAfter > 0 && given == breaksAfter) {
                                throw Status.UNAVAILABLE.asRuntimeException();
                            }
                            return at < served.length;
                        }

                        @Override
                        public DataChunk next() {
                            int end = Math.min(served.length, at + PIECE);
                            ByteString data = ByteString.copyFrom(served, at, end - at);
                            DataChunk chunk = DataChunk.newBuilder().setOffset(at).setData(data).build();
                            at = end;
                            given++;
                            clock.sleep(pieceTakesMs);
                            return chunk;
                        }
                    };
            return new Downloading.Pieces(chunks, () -> closed++);
        };
    }

    private void from(Downloading.Source source) {
        Downloading.toFile(source, new Retry(clock, new Random(2), 120_000), blob, folder, "it", this::ask);
    }

    private byte[] inMemory(Downloading.Source source, long most) {
        Retry retry = new Retry(clock, new Random(2), 120_000);
        return Downloading.toMemory(source, retry, blob, most, "it", this::ask);
    }

    private void ask() {
        Leaving.unlessMet(conditions);
    }

    @Test
    public void itStopsBetweenAnyTwoPiecesWhenAConditionEndsAndGoesOnLater() {
        for (int after = 0; after < 10; after++) {
            int most = PIECE * after;
            folder.delete(blob.sha256);
            conditions = () -> folder.partSize(blob.sha256) < most ? Collections.emptyList() : Collections.singletonList("unmetered");
            String why = Raised.by(ErrorCode.LATE, "unmetered ended", () -> from(server(DATA, 3)));
            assertTrue(why, why.contains("unmetered"));
            assertEquals(most, folder.partSize(blob.sha256));
            conditions = Collections::emptyList;
            from(server(DATA, 3));
            assertArrayEquals(DATA, folder.read(blob.sha256));
        }
    }

    @Test
    public void everyConnectionBreaksAndItArrives() {
        from(server(DATA, 3));
        assertArrayEquals(DATA, folder.read(blob.sha256));
        assertEquals(Arrays.asList(0L, 300L, 600L, 900L), asked);
        assertEquals("no stream is left open", 4, closed);
    }

    @Test
    public void itGoesOnAfterTheProgramWasStopped() {
        folder.append(blob.sha256, Arrays.copyOf(DATA, 450));
        assertFalse("what is not whole is not there", folder.has(blob.sha256));
        from(server(DATA, 0));
        assertArrayEquals(DATA, folder.read(blob.sha256));
        assertEquals(Collections.singletonList(450L), asked);
        assertEquals(Collections.singletonList(blob.sha256), folder.names());
        assertEquals(0, folder.partSize(blob.sha256));
    }

    @Test
    public void whatWasDamagedComesOnceMoreFromTheStart() {
        folder.append(blob.sha256, new byte[450]);
        from(server(DATA, 0));
        assertArrayEquals(DATA, folder.read(blob.sha256));
        assertEquals(Arrays.asList(450L, 0L), asked);
        asked.clear();
        folder.delete(blob.sha256);
        folder.append(blob.sha256, new byte[2000]);
        from(server(DATA, 0));
        assertEquals("longer than it can be", Collections.singletonList(0L), asked);
    }

    @Test
    public void anotherBlobIsRefusedAndAServerThatIsAwayIsGivenUp() {
        byte[] other = DATA.clone();
        other[500] ^= 1;
        Raised.by(ErrorCode.CORRUPT_DATA, "twice", () -> from(server(other, 0)));
        assertEquals(2, asked.size());
        assertFalse(folder.has(blob.sha256));
        byte[] longer = Arrays.copyOf(DATA, 1100);
        Raised.by(ErrorCode.CORRUPT_DATA, "more than asked for", () -> from(server(longer, 0)));
        folder.deleteParts();
        Raised.by(
                ErrorCode.UNREACHABLE,
                "nobody there",
                () ->
                        from(
                                (wanted, offset) -> {
                                    throw Status.UNAVAILABLE.asRuntimeException();
                                }));
        assertEquals(0, folder.partSize(blob.sha256));
    }

    @Test
    public void inMemoryItGoesOnAfterEveryBreakHoweverLongAllOfItTakes() {
        pieceTakesMs = 50_000; // of two minutes' patience with a server that says nothing
        assertArrayEquals(DATA, inMemory(server(DATA, 3), DATA.length));
        assertEquals(Arrays.asList(0L, 300L, 600L, 900L), asked);
        assertEquals("no stream is left open", 4, closed);
        assertEquals("nothing of it is on the disk", Collections.emptyList(), folder.names());
        assertEquals(0, folder.partSize(blob.sha256));
    }

    @Test
    public void whatIsTooLongForMemoryIsNotFetched() {
        Raised.by(ErrorCode.CORRUPT_DATA, "too long", () -> inMemory(server(DATA, 0), DATA.length - 1));
        assertEquals(Collections.emptyList(), asked);
    }

    @Test
    public void otherBytesThanAnnouncedNeverComeOutOfMemory() {
        byte[] other = DATA.clone();
        other[999] ^= 1;
        Raised.by(ErrorCode.CORRUPT_DATA, "twice", () -> inMemory(server(other, 0), DATA.length));
        assertEquals(Arrays.asList(0L, 0L), asked);
        byte[] longer = Arrays.copyOf(DATA, 1100);
        Raised.by(ErrorCode.CORRUPT_DATA, "longer", () -> inMemory(server(longer, 0), DATA.length));
        byte[] shorter = Arrays.copyOf(DATA, 500);
        Raised.by(ErrorCode.UNREACHABLE, "shorter", () -> inMemory(server(shorter, 0), DATA.length));
        Downloading.Source elsewhere = (wanted, offset) -> server(DATA, 0).open(wanted, offset + PIECE);
        Raised.by(ErrorCode.CORRUPT_DATA, "from another byte on", () -> inMemory(elsewhere, DATA.length));
    }

    @Test
    public void itStopsInMemoryToo() {
        conditions = () -> closed < 2 ? Collections.emptyList() : Collections.singletonList("unmetered");
        Raised.by(ErrorCode.LATE, "unmetered ended", () -> inMemory(server(DATA, 3), DATA.length));
        assertEquals(Arrays.asList(0L, 300L), asked);
    }
}
