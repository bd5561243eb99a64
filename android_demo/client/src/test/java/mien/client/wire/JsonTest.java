package mien.client.wire;

import static org.junit.Assert.assertEquals;

import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import mien.client.ErrorCode;
import mien.client.Raised;
import org.junit.Test;

/** JSON as the servers write it is read, and nothing that is not JSON. */
public class JsonTest {
    private static Object parse(String text) {
        return Json.parse(Bytes.utf8(text), "it");
    }

    @Test
    public void valuesAreReadAsTheyAre() {
        assertEquals(Arrays.asList(1L, -5L, 0L, 1.5, -0.25, 2e3, 1e-7), parse(" [1,-5,-0,1.5,-0.25,2e3,1E-7]\r\n\t"));
        assertEquals(Arrays.asList(true, false, null, "", Collections.emptyList()), parse("[true,false,null,\"\",[ ]]"));
        assertEquals(Long.MAX_VALUE, parse("9223372036854775807"));
        assertEquals(Long.MIN_VALUE, parse("-9223372036854775808"));
        assertEquals("\"\\/\b\f\n\r\tä€😀é😀", parse("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\u20AC\\ud83d\\ude00é😀\""));
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("b", 1L);
        fields.put("a", Collections.singletonMap("", "x"));
        assertEquals(fields, parse("{\"b\" : 1 , \"a\":{\"\":\"x\"}}"));
        assertEquals("in their order", "[b, a]", ((Map<?, ?>) parse("{\"b\":1,\"a\":2}")).keySet().toString());
    }

    @Test
    public void whatIsNoJsonIsRefused() {
        String deep = String.join("", Collections.nCopies(70, "["));
        for (String wrong :
                Arrays.asList(
                        "", " ", "{", "[", "]", "[1", "[1,]", "[,1]", "[1 2]", "[1;2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}",
                        "{'a':1}", "'a'", "\"a", "\"\\x\"", "\"\\u12g4\"", "\"\\u12\"", "\"\n\"", "\"\\", "01", "-", "+1", ".5", "1.", "1e", "1e+",
                        "0x1", "NaN", "Infinity", "-Infinity", "1e999", "True", "TRUE", "nul", "tru", "1 2", "{} {}", "[]]", "// a\n1",
                        "/* a */1", "# a\n1", "{\"a\":1,\"a\":2}", "{\"a\"=1}", "{\"a\"=>1}", ")]}'\n1", "\uFEFF1", deep,
                        "9223372036854775808", "-9223372036854775809")) {
            Raised.by(ErrorCode.CORRUPT_DATA, wrong, () -> parse(wrong));
        }
        Raised.by(ErrorCode.CORRUPT_DATA, "not UTF-8 inside", () -> Json.parse(new byte[] {'"', 1, '"'}, "it"));
        Raised.by(ErrorCode.CORRUPT_DATA, "longer than 1 MiB", () -> Json.parse(new byte[(1 << 20) + 1], "it"));
        Raised.by(ErrorCode.CORRUPT_DATA, "no object", () -> Json.object(Bytes.utf8("[]"), "it"));
    }

    @Test
    public void nestingIsReadAsDeepAsAnythingOfOursGoes() {
        String open = String.join("", Collections.nCopies(60, "["));
        assertEquals(open + open.replace('[', ']'), parse(open + open.replace('[', ']')).toString());
    }

    @Test
    public void itIsWrittenInOneWayAlone() {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("b", Arrays.asList(1L, 2, true, null));
        fields.put("a", "ä\"\n\u0001/😀");
        String written = "{\"a\":\"\\u00e4\\\"\\n\\u0001/\\ud83d\\ude00\",\"b\":[1,2,true,null]}";
        assertEquals(written, Json.write(fields));
        assertEquals(written, Json.write(parse(written)));
        Raised.by(ErrorCode.CORRUPT_DATA, "a number that is not whole", () -> Json.write(1.5));
    }
}
