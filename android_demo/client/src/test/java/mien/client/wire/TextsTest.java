package mien.client.wire;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Arrays;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.MienException;
import mien.client.Raised;
import mien.client.Vectors;
import org.junit.Test;

/** Invites, JSON and plain texts, from the best and the worst of hands. */
public class TextsTest {
    private static String longText() {
        char[] text = new char[70_000];
        Arrays.fill(text, 'x');
        return new String(text);
    }

    @Test
    public void textsOfOthersAreHeldToALength() {
        assertEquals("short", Texts.cut("short"));
        assertEquals(Texts.MOST, Texts.cut(longText()).length());
        assertEquals("task-1", Texts.name("task-1", "the task's id"));
        Raised.by(ErrorCode.CORRUPT_DATA, "a name", () -> Texts.name(longText(), "the task's id"));
        Metadata trailers = new Metadata();
        trailers.put(Metadata.Key.of("mien-error", Metadata.ASCII_STRING_MARSHALLER), "late");
        Status late = Status.ABORTED.withDescription(longText());
        for (Metadata each : new Metadata[] {trailers, new Metadata()}) {
            MienException told = Statuses.meaning(new StatusRuntimeException(late, each), "the coordinator");
            assertEquals(ErrorCode.LATE, told.code());
            assertTrue(told.getMessage().length() <= Texts.MOST);
        }
        Fields fields = Json.object(Bytes.utf8("{\"" + longText() + "\":1}"), "it");
        String unknown = Raised.by(ErrorCode.VERSION, "a field's name", fields::end);
        assertTrue(unknown.length() < Texts.MOST + 100);
    }

    @Test
    public void aServerThatCannotStoreIsAwayWhateverItsDiskSays() {
        for (String word : new String[] {"disk_full", "file_access", "key_store", "database"}) {
            Metadata trailers = new Metadata();
            trailers.put(Metadata.Key.of("mien-error", Metadata.ASCII_STRING_MARSHALLER), word);
            StatusRuntimeException failed = new StatusRuntimeException(Status.INTERNAL, trailers);
            assertEquals(word, ErrorCode.UNREACHABLE, Statuses.meaning(failed, "the coordinator").code());
        }
    }

    @Test
    public void invites() throws Exception {
        Vectors file = Vectors.load("golden/client/invites.json");
        for (int i = 0; i < file.at("good").size(); i++) {
            Vectors given = file.at("good").at(i);
            Invite invite = Invite.parse(given.at("url").text());
            assertEquals(given.at("registrar").text(), invite.registrarAddress);
            assertEquals(given.at("registrar_ca_sha256").text(), invite.registrarCaSha256);
            assertEquals(given.at("coordinator_ca_sha256").text(), invite.coordinatorCaSha256);
            assertEquals(given.at("token").text(), invite.token());
            assertEquals(given.at("code").text(), invite.code());
            assertArrayEquals(given.at("attestation_challenge").bytes(), invite.attestationChallenge());
            assertFalse(invite.toString().contains(invite.token()));
        }
        for (int i = 0; i < file.at("refused").size(); i++) {
            Vectors given = file.at("refused").at(i);
            String why = given.at("why").text();
            String message = Raised.by(ErrorCode.INVITE, why, () -> Invite.parse(given.at("url").text()));
            assertFalse("a token is never shown", message.contains("TTTT"));
        }
    }

    @Test
    public void jsonThatIsNone() {
        String[] bad = {
            "", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "01", "1e999", "NaN", "\"\\x\"", "tru", "[1] 2", "{1:2}",
            "\"\n\"", "\"\\u12g4\"", "123456789012345678901234567890"
        };
        for (String text : bad) {
            Raised.by(ErrorCode.CORRUPT_DATA, text, () -> Json.parse(Bytes.utf8(text), "it"));
        }
        StringBuilder deep = new StringBuilder();
        for (int i = 0; i < 100_000; i++) {
            deep.append('[');
        }
        Raised.by(ErrorCode.CORRUPT_DATA, "too deep", () -> Json.parse(Bytes.utf8(deep.toString()), "it"));
        Raised.by(ErrorCode.CORRUPT_DATA, "too long", () -> Json.parse(new byte[1 << 21], "it"));
    }

    @Test
    public void jsonThatIs() {
        String text = "{\"b\": [1, -2.5e-1, true, null, \"\\u00e9\\n\\\"\"], \"a\": {}}";
        Map<?, ?> value = (Map<?, ?>) Json.parse(Bytes.utf8(text), "it");
        assertEquals(Arrays.asList(1L, -0.25, true, null, "é\n\""), value.get("b"));
        assertEquals("{\"a\":\"\\u00e9\\n\\\"\",\"b\":[1,null]}", Json.write(map("b", Arrays.asList(1, null), "a", "é\n\"")));
    }

    private static Map<String, Object> map(String a, Object first, String b, Object second) {
        Map<String, Object> map = new java.util.LinkedHashMap<>();
        map.put(a, first);
        map.put(b, second);
        return map;
    }

    @Test
    public void tensorsThatAreNone() {
        byte[] good = Bytes.concat(new byte[] {60, 0, 0, 0, 0, 0, 0, 0},
                Bytes.utf8("{\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}       "), new byte[] {7, 8});
        assertEquals(8, Safetensors.parse(good, "it").get("w", "U8").data.get(1));
        Raised.by(ErrorCode.CORRUPT_DATA, "cut off", () -> Safetensors.parse(Arrays.copyOf(good, good.length - 1), "it"));
        Raised.by(ErrorCode.CORRUPT_DATA, "another type", () -> Safetensors.parse(good, "it").get("w", "F32"));
        Raised.by(ErrorCode.CORRUPT_DATA, "no header", () -> Safetensors.parse(new byte[9], "it"));
        // 2 x (2^62 + 1) x 2 is 4 in 64 bits.
        String header = "{\"w\":{\"dtype\":\"U8\",\"shape\":[2,4611686018427387905,2],\"data_offsets\":[0,4]}}";
        byte[] wrapped = Bytes.concat(
                new byte[] {(byte) header.length(), 0, 0, 0, 0, 0, 0, 0}, Bytes.utf8(header), new byte[] {1, 2, 3, 4});
        Raised.by(ErrorCode.CORRUPT_DATA, "a shape beyond all numbers", () -> Safetensors.parse(wrapped, "it"));
    }

    private static byte[] twoTensors(int firstBegin, int firstEnd, int secondBegin, int secondEnd) {
        String tensor = "{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}";
        String header =
                "{\"a\":" + String.format(tensor, firstEnd - firstBegin, firstBegin, firstEnd)
                        + ",\"b\":" + String.format(tensor, secondEnd - secondBegin, secondBegin, secondEnd) + "}";
        return Bytes.concat(
                new byte[] {(byte) header.length(), 0, 0, 0, 0, 0, 0, 0}, Bytes.utf8(header), new byte[] {1, 2, 3, 4});
    }

    @Test
    public void bytesOfTwoTensorsOrOfNone() {
        assertEquals(3, Safetensors.parse(twoTensors(0, 2, 2, 4), "it").get("b", "U8").data.get(0));
        assertEquals(1, Safetensors.parse(twoTensors(2, 4, 0, 2), "it").get("b", "U8").data.get(0));
        assertEquals(0, Safetensors.parse(twoTensors(0, 4, 0, 0), "it").get("b", "U8").data.remaining());
        assertEquals(0, Safetensors.parse(twoTensors(0, 4, 4, 4), "it").get("b", "U8").data.remaining());
        int[][] wrong = {{0, 4, 2, 2}, {0, 3, 2, 4}, {0, 4, 0, 4}, {0, 4, 1, 2}, {0, 1, 2, 4}, {1, 2, 2, 4}, {0, 1, 1, 3}};
        for (int[] each : wrong) {
            byte[] blob = twoTensors(each[0], each[1], each[2], each[3]);
            Raised.by(ErrorCode.CORRUPT_DATA, Arrays.toString(each), () -> Safetensors.parse(blob, "it"));
        }
    }
}
