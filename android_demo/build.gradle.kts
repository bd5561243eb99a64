plugins {
    id("com.android.application") version "8.12.0" apply false
    id("com.google.protobuf") version "0.9.5" apply false
}

// One list of versions: Maven's.
val pom = file("pom.xml").readText()
listOf("grpc", "protobuf", "bouncycastle", "onnxruntime", "gson", "zxing", "junit").forEach {
    extra[it] = Regex("<$it.version>(.*)</$it.version>").find(pom)!!.groupValues[1]
}
