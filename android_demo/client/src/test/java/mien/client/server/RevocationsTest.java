package mien.client.server;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertTrue;

import com.google.protobuf.ByteString;
import java.io.ByteArrayOutputStream;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import mien.client.ErrorCode;
import mien.client.Raised;
import mien.client.join.RevocationList;
import mien.v1.Common.DataChunk;
import org.junit.Test;

/** The pieces of a list of revoked phones are put end to end, up to its limit. */
public class RevocationsTest {
    private static DataChunk piece(byte... bytes) {
        return DataChunk.newBuilder().setData(ByteString.copyFrom(bytes)).build();
    }

    @Test
    public void piecesMakeAList() {
        ByteArrayOutputStream list = new ByteArrayOutputStream();
        List<DataChunk> pieces = Arrays.asList(piece((byte) 1, (byte) 2), piece(), piece((byte) 3));
        CoordinatorClient.gather(pieces.iterator(), list, 3, "a list");
        assertArrayEquals(new byte[] {1, 2, 3}, list.toByteArray());
    }

    @Test
    public void aListWithoutEndIsLeft() {
        List<DataChunk> endless = Collections.nCopies(1_000_000, piece(new byte[1024 * 1024]));
        ByteArrayOutputStream list = new ByteArrayOutputStream();
        String told =
                Raised.by(
                        ErrorCode.CORRUPT_DATA,
                        "no end",
                        () -> CoordinatorClient.gather(endless.iterator(), list, RevocationList.MAX_BYTES, "a list"));
        assertTrue(told, told.contains("without end"));
        assertTrue(list.size() <= RevocationList.MAX_BYTES);
    }
}
